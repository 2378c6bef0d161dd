"""The control loop at work: measuring, planning when there is reason to, and what a console shows of it.

* `runtime`: gathers reasons to plan, plans, stores, and has the gateway follow
* `replanning`: when to plan, and planning in a thread of its own
* `measuring`: once a second, what the gateway has counted
* `delay_requirements`: what is required of ports whose widths are controlled, and who is asked to publish less
* `assignments`: what is in force, seen by subscriber, and who waits for it to change
* `figures`: what happened in the last second, for those who look on
* `health`: how the coordinator itself is doing
"""
