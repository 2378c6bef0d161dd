"""Between coordinator and gateway: lines of JSON on a socket, the wanted state, and its confirmation."""
