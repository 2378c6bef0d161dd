"""What ports carry and lose: counters and reports in, estimates out, and what to plan with."""
