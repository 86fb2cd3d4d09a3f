"""Replicas behind balancing policies, as a discrete-event simulation.

`traces` makes conversations, `balancers` choose replicas, `replica` computes prompts and tokens in
steps, `simulator` runs them and counts. `study` compares policies and defaults, and `validation`
the simulation with real services on loopback. A seed determines every figure.
"""
