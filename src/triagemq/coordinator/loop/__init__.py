"""The control loop at work: measuring, planning when there is reason to, and what a console shows of it."""
