"""The service: intents, control loop, store and REST; puts exchange and network together for `up` and `emulate`."""
