"""Plans a table's storage type: its bytes, speed and price, before anything is bought.

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

Each step of a plan is a module: `popularity` models how often rows are looked up, `hit_rates` the
tiers in which they are found, `accesses` a step's accesses to each device, `step_time` their time,
and `plan` the number of machines, with `prices`, that are needed.

Nothing is imported here, so that the command line can read its options without the engine and
NumPy.
"""
