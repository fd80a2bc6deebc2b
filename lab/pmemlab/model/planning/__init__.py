"""Which storage mode a table should have: bytes, speed and price, before anything is bought.

    from pmemlab.model.devices.loading import device_names
    from pmemlab.model.planning.cpu_work import measure_cpu_work
    from pmemlab.model.planning.plan import Workload, make_plans
    from pmemlab.model.planning.planned_tables import planned_table
    from pmemlab.model.planning.prices import load_prices
    from pmemlab.model.planning.tiers import named_devices

    items = planned_table("items", rows=2_000_000_000, dim=64, skew=1.05)
    workload = Workload((items,), lookups_per_s=5e6)
    cpu = measure_cpu_work(items.dim, items.optimizer, items.popularity, training=True)
    plans = make_plans(workload, named_devices(device_names()), load_prices(), cpu).plans

A module a step: `popularity` is how often rows are asked for, `hit_rates` in which tier they are
found, `accesses` what a step does at which device, `step_time` how long that takes, and `plan` how
many machines of which `prices` are needed for it.

Nothing is imported here: the command line takes its options from this package where neither the
engine nor NumPy need be.
"""
