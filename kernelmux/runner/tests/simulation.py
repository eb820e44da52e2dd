"""The plan in simulated time: N workers, items of given seconds, a heap of what ends when.

python -m kernelmux.runner.tests.simulation                          print what is measured
python -m kernelmux.runner.tests.simulation --record --draw          and write the record and the picture of the pages
"""

import argparse
import datetime
import heapq
import json
import platform
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from kernelmux.runner.item import Slot, WorkItem
from kernelmux.runner.plan import Plan
from kernelmux.runner.tests import toy

TOP = Path(__file__).resolve().parents[3]
RECORD = TOP / "kernelmux/records/cpu/trials/runner_simulation.json"
PICTURE = TOP / "docs/images/runner_throughput.svg"
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MEANS = (0.02, 0.1, 0.5)  # seconds of an item
PER_WORKER = 60  # items
SEED = 1
HOW = (
    "the seconds of items are log-normal. plan_ms: CPU of this process for an item, the heap included: 100,000 items over "
    "64 workers; plan_ms_gpus: 20,000 items with groups, ranks, memory and 1 % alone over 64 slots of "
    "8 GPUs and 8 for items alone. driver_s: CPU of the driver for an empty item, with two real workers. rows: the driver "
    "takes events one by one, each in driver_s; of_the_bound: the larger of all seconds over the workers and the longest "
    "item, over the makespan"
)


@dataclass
class Simulated:
    """makespan: seconds until all have ended. order: ids as they began. cpu: seconds of this process, heap and all."""

    makespan: float
    order: list[str]
    cpu: float


def simulate(items, slots, took=None, driver=0.0):
    """Run a plan. took: seconds of items that do not take what is expected; driver: for each event, one by one."""
    took, began = took or {}, time.process_time()
    plan, idle, now, free = Plan(items), {slot.id: slot for slot in slots}, 0.0, 0.0
    order: list[str] = []
    heap: list[tuple[float, int, Slot]] = []
    while plan.left:
        for slot in list(idle.values()):
            if (item := plan.next(slot)) is not None:
                del idle[slot.id]
                order.append(item.id)
                heapq.heappush(heap, (max(now, free) + took.get(item.id, item.seconds), len(order), slot))
        now, _, slot = heapq.heappop(heap)
        free = max(now, free) + driver
        plan.end(slot)
        idle[slot.id] = slot
    return Simulated(max(now, free), order, time.process_time() - began)


def workers(number):
    return [Slot(f"w{i}") for i in range(number)]


def drawn(number, mean, seed=SEED):
    """Items whose seconds are as far apart as those of real ones: log-normal, a tenth of them above twice the mean."""
    chance = random.Random(seed)
    seconds = [chance.lognormvariate(0.0, 1.0) for _ in range(number)]
    total = sum(seconds)
    return [WorkItem(f"i{i}", seconds=one * mean * number / total) for i, one in enumerate(seconds)]


def mixed(number, gpus=8, each=8, seed=SEED):
    """Items for GPUs: groups, memory, some alone; and the slots of a node."""
    chance, items = random.Random(seed), drawn(number, 0.5, seed)
    made = [
        WorkItem(
            item.id,
            seconds=item.seconds,
            rank=chance.choice((0, 0, 1)),
            group=f"g{chance.randrange(1 + number // 20)}",
            gpus=1,
            alone=chance.random() < 0.01,
            memory=int(2**30 * chance.lognormvariate(0, 1.5)),
        )
        for i, item in enumerate(items)
    ]
    slots = [Slot(f"gpu{g}-{i}", gpus=(str(g),), memory=80 * 2**30) for g in range(gpus) for i in range(each)]
    return made, [*slots, *(Slot(f"alone{g}", gpus=(str(g),), alone=True, memory=80 * 2**30) for g in range(gpus))]


def straggler(number=2000, count=64, times=20):
    """By how much the makespan grows when one item takes 10 x what was expected, over its own extra seconds; the worst."""
    worst = 0.0
    for seed in range(times):
        items = drawn(number, 0.5, seed)
        slow = random.Random(seed).choice(items)
        before, after = (simulate(items, workers(count), took) for took in ({}, {slow.id: 10 * slow.seconds}))
        worst = max(worst, (after.makespan - before.makespan) / (9 * slow.seconds))
    return worst


def driver_seconds(number=1000):
    """CPU seconds of the driver for an item, plan, file and processes in all: empty items on two workers."""
    with tempfile.TemporaryDirectory() as folder:
        toy.go(Path(folder), toy.items(2))
        begin = time.process_time()
        toy.go(Path(folder), toy.items(2))
        start, begin = time.process_time() - begin, time.process_time()
        toy.go(Path(folder), toy.items(number))
        return max(1e-6, (time.process_time() - begin - start) / number)


def throughput(driver):
    """Items per second for each mean and number of workers, and the share of that which they could run at most."""
    rows = []
    for mean in MEANS:
        for count in WORKERS:
            items = drawn(PER_WORKER * count, mean)
            total = sum(item.seconds for item in items)
            bound = max(total / count, max(item.seconds for item in items))
            found = simulate(items, workers(count), driver=driver)
            rate = round(len(items) / found.makespan, 1)
            rows.append({"mean_s": mean, "workers": count, "items": len(items), "items_per_s": rate})
            rows[-1]["of_the_bound"] = round(bound / found.makespan, 4)
    return rows


def draw(record):
    """The throughput over the workers as SVG: dashed what so many workers could do with no driver at all."""
    from kernelmux.perf.pictures import figures, themes

    with figures.blank(6.2, 3.9) as figure:
        axes = figure.subplots()
        for mean, colour in zip(MEANS, (*themes.BACKENDS.values(),), strict=True):
            rows = [row for row in record["rows"] if row.get("mean_s") == mean]
            counts = [row["workers"] for row in rows]
            rates = [row["items_per_s"] for row in rows]
            axes.plot(
                counts, rates, color=colour, marker="o", markersize=3.5, linewidth=1.5, label=f"{mean:g} s an item"
            )
            axes.plot(counts, [count / mean for count in counts], color=colour, linestyle="--", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="items/s")
        axes.set_xticks(WORKERS, [str(count) for count in WORKERS])
        axes.minorticks_off()
        axes.grid(True, linewidth=0.6)
        axes.legend(loc="upper left", frameon=False)
        figure.supxlabel(f"simulated, {1e3 * record['driver_s']:.2g} ms of the driver for an item", fontsize=7.5)
        return figures.svg(figure)


def measured():
    """The record."""
    plain = simulate(drawn(100_000, 0.5), workers(64))
    items, slots = mixed(20_000)
    gpus = simulate(items, slots)
    driver = driver_seconds()
    sets = [drawn(2000, 0.5, seed) for seed in range(5)]
    spread = [simulate(items, workers(64)).makespan / _bound(items, 64) for items in sets]
    command = "python -m kernelmux.runner.tests.simulation --record --draw"
    versions = {"python": platform.python_version()}
    date = datetime.date.today().isoformat()
    return {
        "what": "the plan of kernelmux/runner in simulated time: a heap of what ends when",
        "run": {"gpu": "none: simulated", "cpu": _cpu(), "versions": versions, "date": date, "command": command},
        "how": HOW,
        "plan_ms": round(1e3 * plain.cpu / 100_000, 4),
        "plan_ms_gpus": round(1e3 * gpus.cpu / len(items), 4),
        "driver_s": round(driver, 6),
        "straggler": {"times_expected": 10, "worst_growth_over_its_extra": round(straggler(), 4)},
        "makespan_over_bound_64_workers": round(statistics.median(spread), 4),
        "rows": throughput(driver),
    }


def _bound(items, count):
    return max(sum(item.seconds for item in items) / count, max(item.seconds for item in items))


def _cpu():
    names = [line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if "model name" in line]
    return names[0].partition(": ")[2] if names else platform.processor()


def text(record):
    """As JSON, a row a line."""
    rows = ",\n".join(f"  {json.dumps(row)}" for row in record["rows"])
    rest = ",\n".join(f" {json.dumps(name)}: {json.dumps(told)}" for name, told in record.items() if name != "rows")
    return f'{{\n{rest},\n "rows": [\n{rows}\n ]\n}}\n'


def main():
    parser = argparse.ArgumentParser(description="The plan in simulated time.")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.relative_to(TOP)}")
    parser.add_argument("--draw", action="store_true", help=f"write {PICTURE.relative_to(TOP)}")
    options = parser.parse_args()
    record = measured()
    print(text(record), end="")
    if options.record:
        RECORD.write_text(text(record), encoding="utf-8")
    if options.draw:
        PICTURE.write_text(draw(record), encoding="utf-8")


if __name__ == "__main__":
    main()
