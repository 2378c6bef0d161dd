"""TriageMQ decides, when a network cannot carry everything, which IoT events go first and which not at all."""

__version__ = "0.1.0"
