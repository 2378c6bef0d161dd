"""The experiments of PEER-WD (Tao and Poslad, UbiComp 2013): delay-aware balancing of brokers, and PEER."""
