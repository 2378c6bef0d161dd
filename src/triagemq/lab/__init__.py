"""The laboratory: what studies the product. Nothing of the product imports it; `triagemq[lab]` brings its packages.

papers      the papers' experiments, printed and ours (`triage reproduce`)
emulate     a scenario with real packets, in the network namespaces of `box` (`triage emulate`)
fidelity    forecast and simulation, cell by cell (`triage validate`)
sweep       many simulations as Spark tasks (`triage sweep`)
clusters    a fluid simulation of clusters of brokers
generators  the papers' situations, by rule
queue_delay the paper's estimators of queueing delay, read errors, models grown in one process
"""
