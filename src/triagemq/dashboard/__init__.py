"""The page for people, in the coordinator's application: what an operator and an incident commander look at.

serve       the coordinator's process with its page; without NiceGUI the same process without
mounting    the page's place in the application; what is below is loaded soon after the start, or when it is asked for
visitors    who looks: signed in with a token, with the rights that it has over REST
readings    what all pages show, gathered from the coordinator once a second, however many look on
values      the latest value of every topic, heard from the broker while somebody looks at the situation
guests      subscribers that the page itself is, for subscriptions made on it
showing     numbers, words and small drawings as HTML; templates and the style sheet
compressing what browsers load, compressed once
frame       what surrounds every page: navigation, light and dark, what is refused said in words
pages       one module for each page

Nothing of it is on the way of an event, and pages use what REST uses.
"""
