"""CPU time of another process, read from its own clock.

Invariant: a reading counts user and system time of all threads of every process given, at nanosecond resolution;
a process that has ended counts as nothing, so the tree is listed once and read twice while it lives.
"""

import time
from pathlib import Path

_SCHED_CLOCK = 2  # CPUCLOCK_SCHED in the kernel's posix-timers.h: what the scheduler charged, not timer ticks


def process_clock_id(pid: int) -> int:
    """Clock id of a process, as MAKE_PROCESS_CPUCLOCK builds it (include/linux/posix-timers.h)."""
    return (~pid << 3) | _SCHED_CLOCK


def cpu_s(pids: list[int]) -> float:
    """Seconds of CPU that these processes have used so far."""
    total_s = 0.0
    for pid in pids:
        try:
            total_s += time.clock_gettime(process_clock_id(pid))
        except OSError:
            continue
    return total_s


def process_tree(root_pid: int) -> list[int]:
    """The process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(after_name[1]), []).append(int(entry.name))
    found: list[int] = []
    todo = [root_pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo.extend(children.get(pid, []))
    return found


def resident_mib(pids: list[int]) -> float:
    """Resident memory of these processes, shared pages counted once per process."""
    total_kib = 0
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        total_kib += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return total_kib / 1024
