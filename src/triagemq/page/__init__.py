"""The page for people, in the coordinator's application: what an operator and an incident commander look at.

serve       the coordinator's process with its page; without NiceGUI the same process without
context     what all pages share; the page's own subscribers; signed-in browsers, with the rights of their tokens
readings    figures of all pages, gathered from the coordinator once a second
values      the latest value of every topic, from the broker while the situation page is open
frame       templates, small drawings and the style sheet; navigation, light and dark, and errors around every page
pages       one module for each page

No event passes it, and pages use what REST uses.
"""
