"""Experiments and Trials at admission: defaulted, and refused with all their faults at once.

`defaults` fills in, `reading` checks types, `metrics`, `space`, `template` and `update` hold the rules,
`handlers` answers requests. All but `handlers` are pure: objects in, faults out.
"""
