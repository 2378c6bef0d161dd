"""The control loop at work: measuring, planning when there is reason to, and what a console shows of it.

* `runtime`: gathers reasons to plan, plans, stores, and has the gateways follow
* `replanning`: planning in a thread of its own
* `measuring`: once a second, the gateways' counts
* `delay_requirements`: constraints of ports whose queue rates are controlled, and publishers that are to slow down
* `assignments`: what is in force, seen by client, and long polls for a change
* `figures`: the last second, and what each subscription gets
* `health`: the state of the coordinator itself
"""
