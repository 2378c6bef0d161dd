"""The gateway as a process that is led: MQTT-SN gateway, data plane, control channel and trace put together."""
