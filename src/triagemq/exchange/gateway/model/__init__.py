"""What a gateway knows, as nouns: state and what can be asked of it, no decisions, no clock.

messages, topics, timers    one message, one topic id, one moment
sessions                    clients, their links to the broker, and the routes from there to them
limits, publications what a gateway has by address, and in order of arrival
rows                        what of all this is stored, and what of that has changed
"""
