"""How often topics are published: counts in, estimates out, and which have left the band that was planned with."""
