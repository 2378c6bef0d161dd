"""The service: intents, the control loop, the store and REST; puts exchange and network together for `up` and `emulate`."""
