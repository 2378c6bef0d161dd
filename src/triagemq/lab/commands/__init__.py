"""Commands of the laboratory: experiments, emulation, sweeps, generated scenarios, forecast beside simulation."""
