"""Brokers: where one is, and one of our own for those who have none.

address    where a broker is, and how to log in
process    Mosquitto or the embedded one as a child, which is started again when it ends
ports      where that listens: at the same place after every start
users      whom it lets in, and for what
embedded   the broker in pure Python
"""
