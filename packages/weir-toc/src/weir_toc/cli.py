"""`weir-toc`: runs members of the controller and aggregators, and shows their status."""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import json
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from weir_toc import __version__
from weir_toc.congestion import MARK_ABOVE, rate_of
from weir_toc.controller.records import Founded
from weir_toc.errors import InvalidUse, SwitchTaken, TocError, first_error
from weir_toc.forwarding import Forwarding
from weir_toc.hosts.aggregator import Aggregator
from weir_toc.hosts.announcer import Announcer
from weir_toc.hosts.control_link import address_in, is_foreign
from weir_toc.hosts.controller import Controller
from weir_toc.hosts.frames import Address, Frame, addresses_of, ask_once
from weir_toc.hosts.scheduling import promptly
from weir_toc.hosts.udp import address_of
from weir_toc.metrics import metrics_of
from weir_toc.places import Place
from weir_toc.topology import Topology, name_of_switch, switch_id
from weir_toc.xdp.aggregator import XdpAggregator

#: Exit codes. `argparse` ends with WRONG_USE for what it does not understand.
FAILED, WRONG_USE, NO_MAJORITY, TAKEN = 1, 2, 3, 4
#: Addresses that stand for all of a host: nobody can send to them.
_ANY = ("0.0.0.0", "::")
#: An aggregator that has not started for so long says whom it waits for.
_QUIET_SECONDS = 2.0
#: Stands for a standard output that was closed when the program began.
_NO_FILE = -1


def run() -> None:
    """The entry point."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        code = int(options.run(options))
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # as `head` does, which has read what it wants
        _leave_output()
        return FAILED
    except (TocError, OSError) as error:
        print(f"weir-toc: {error}", file=sys.stderr)
        if isinstance(error, InvalidUse):
            return WRONG_USE
        return TAKEN if isinstance(error, SwitchTaken) else FAILED
    except KeyboardInterrupt:
        return 130


def _leave_output() -> None:
    """Let what is still to be written go nowhere: Python writes it as it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weir-toc",
        description="Total order for packets: controller, aggregators, whole networks, status.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    controller = verbs.add_parser("controller", help="run one member of the controller")
    controller.add_argument("--id", type=int, required=True, help="which member this is, from 1")
    controller.add_argument(
        "--members", required=True, help="all members in order: toc://host:port,host:port,host:port"
    )
    controller.add_argument(
        "--listen",
        help="where it takes connections, if not at its address among the members, as behind "
        "address translation: host:port",
    )
    controller.add_argument("--folder", type=Path, required=True, help="where its log is kept")
    for tier, count, below in (("racks", 1, "with processes"), ("spines", 0, "above the racks"),
                               ("cores", 0, "above the spines")):  # fmt: skip
        controller.add_argument(
            f"--{tier}", type=int, default=count, metavar="COUNT",
            help=f"how many switches {below} the network is founded with; {count} by default",
        )  # fmt: skip
    controller.add_argument(
        "--interval-ms", type=float, default=1.0,
        help="time between beacons, 1 by default; 5 from 16 processes on two cores",
    )  # fmt: skip
    places = [one.value for one in Place]
    controller.add_argument(
        "--place", choices=places, default=Place.HOST.value,
        help="where barriers are aggregated: a process forwards all packets, a process sends "
        "beacons beside what the kernel forwards, or a program in the data path",
    )  # fmt: skip
    _add_marks(controller)
    controller.set_defaults(run=_controller)
    aggregator = verbs.add_parser("aggregator", help="run the process of one switch")
    aggregator.add_argument("url", help="the controller: toc://host:port,host:port,host:port")
    aggregator.add_argument(
        "--switch", default="rack-0", help="rack-N, spine-N or core-N; rack-0 by default"
    )
    aggregator.add_argument(
        "--listen", default="127.0.0.1:0",
        help="where it takes packets, as processes reach it: host:port, 127.0.0.1:0 by default; "
        "port 0 takes any",
    )  # fmt: skip
    aggregator.add_argument(
        "--advertise",
        help="where processes and other aggregators reach it, if not at --listen: host:port; "
        "port 0 stands for that of --listen",
    )
    aggregator.add_argument(
        "--place", choices=places, default=Place.HOST.value, help="as the network was founded"
    )
    _add_data_path(aggregator)
    aggregator.set_defaults(run=_aggregator)
    status = verbs.add_parser("status", help="show what the members of the controller know")
    status.add_argument("url", help="toc://host:port,host:port,host:port")
    status.add_argument(
        "--metrics", action="store_true", help="print metrics, as Prometheus collects them"
    )
    status.set_defaults(run=_status)
    up = _net_up(verbs)
    for verb in (controller, aggregator, status, up):
        verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _add_data_path(aggregator: argparse.ArgumentParser) -> None:
    aggregator.add_argument(
        "--xdp",
        default="",
        metavar="DEVICE,DEVICE",
        help="with --place xdp: all ports of the switch, in this network namespace",
    )
    aggregator.add_argument(
        "--forward", metavar="NETWORK",
        help="with --place switch: let the kernel forward to the hosts of each rack as the "
        "controller says, whose network is such as 10.0.RACK.0/24",
    )  # fmt: skip


def _add_marks(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--drain-mbit", type=float, default=0.0, metavar="MBIT",
        help="each output of a switch marks packets as if it sent so many 10^6 bits a second, a "
        "little less than its link does; 0 for no marks",
    )  # fmt: skip
    verb.add_argument(
        "--mark-bytes",
        type=int,
        metavar="BYTES",
        help=f"mark above so many bytes in the queue of an output; {MARK_ABOVE} by default",
    )


def _marks(options: argparse.Namespace) -> tuple[int, int]:
    """Return the drain rate in bytes per 2^20 ns and the threshold in bytes. Raises InvalidUse."""
    mbit, above = options.drain_mbit, options.mark_bytes
    if mbit and not 0.1 <= mbit <= 1_000_000:
        raise InvalidUse("--drain-mbit: 0.1 to 1000000 are possible, and 0 for no marks")
    if mbit and Place(options.place).is_direct:
        raise InvalidUse("--drain-mbit: in place switch data pass no process that could mark them")
    if above is not None and not (mbit and 1 <= above <= 1_000_000_000):
        raise InvalidUse("--mark-bytes: 1 to 1000000000 are possible, together with --drain-mbit")
    return rate_of(mbit), above or MARK_ABOVE


def _net_up(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    net = verbs.add_parser("net", help="a whole network on this machine, in network namespaces")
    up = net.add_subparsers(required=True, metavar="VERB").add_parser(
        "up", help="build a tree of hosts and switches and run it until Ctrl-C; needs root on Linux"
    )
    for option, count, what in (("hosts", 8, "spread over the racks"), ("racks", 4, "switches"),
                                ("spines", 2, "switches"), ("cores", 1, "switches"),
                                ("members", 3, "of the controller")):  # fmt: skip
        up.add_argument(f"--{option}", type=int, default=count, metavar="COUNT",
                        help=f"how many: {what}; {count} by default")  # fmt: skip
    up.add_argument(
        "--place", choices=[one.value for one in Place], default=Place.HOST.value,
        help="where barriers are aggregated, as for `controller`",
    )  # fmt: skip
    up.add_argument(
        "--loss", type=float, default=0.0, metavar="PERCENT",
        help="of the packets that each device of the tree sends, 0 to 50; 0 by default",
    )  # fmt: skip
    _add_marks(up)
    up.add_argument("--interval-ms", type=float, default=5.0,
                    help="time between beacons; 5 by default")  # fmt: skip
    up.add_argument(
        "--folder",
        type=Path,
        help="where logs are kept; else they are in memory and end with the tree",
    )
    up.set_defaults(run=_up)
    return up


def _up(options: argparse.Namespace) -> int:
    from weir_toc.net.network import NetConfig, run
    from weir_toc.net.tree import Tree

    if not 0 <= options.loss <= 50:
        raise InvalidUse("--loss: 0 to 50 percent are possible")
    if not 1 <= options.members <= 7:
        raise InvalidUse("--members: 1 to 7 are possible")
    _check_interval(options.interval_ms)
    tree = Tree(options.hosts, options.racks, options.spines, options.cores)
    _marks(options)
    Place(options.place).check(tree.topology, -(-options.hosts // options.racks))
    if options.folder is not None:
        _make_folder(options.folder, "controller-*")
    config = NetConfig(Place(options.place), options.members, options.interval_ms,
                       options.loss / 100, options.folder, options.json, options.drain_mbit,
                       options.mark_bytes)  # fmt: skip
    run(tree, config, lambda: _announcer(options.json))
    return 0


def _make_folder(folder: Path, own: str) -> None:
    """Make a folder. Raises `TocError` for one with files of which no name matches `own`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = sorted({one.name for one in folder.iterdir()} - {"lost+found"})
    except OSError as error:
        raise TocError(f"--folder {folder} cannot be made: {error.strerror}") from error
    if names and not fnmatch.filter(names, own):
        raise TocError(
            f"--folder {folder} holds other files ({', '.join(names[:3])}) and no log of a "
            "controller: give an empty folder, or one that does not exist yet"
        )


def _check_interval(interval_ms: float) -> None:
    if not 0.1 <= interval_ms <= 1_000:
        raise InvalidUse("--interval-ms: 0.1 to 1000 are possible")


def _controller(options: argparse.Namespace) -> int:
    members = dict(enumerate(addresses_of(options.members), 1))
    if options.id not in members:
        raise InvalidUse(f"--id {options.id}: there are members 1 to {len(members)}")
    _check_interval(options.interval_ms)
    Place(options.place).check(Topology.tree(options.racks, options.spines, options.cores))
    shape = (options.racks, options.spines, options.cores)
    founding = Founded(*shape, int(options.interval_ms * 1_000_000), options.place,
                       *_marks(options))  # fmt: skip
    listen = _address("--listen", options.listen) if options.listen else None
    _make_folder(options.folder, "controller.log*")
    controller = Controller(options.id, members, options.folder, founding)
    host, port = members[options.id]
    log = controller.log
    recovered = {"member": options.id, "host": host, "port": port, "log_bytes": log.size,
                 "torn_bytes": log.torn}  # fmt: skip
    with _announcer(options.json) as announcer:
        announcer.say("controller", recovered)
        announcer.flush()
        return _until_told(_with_alarms(announcer, controller, listen))


async def _with_alarms(
    announcer: Announcer, controller: Controller, listen: Address | None
) -> None:
    """Run a member, and print a line for each alarm that begins or ceases."""

    async def tell() -> None:
        while True:
            announcer.say(*await controller.next_alarm())

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(tell())
        tasks.create_task(controller.run(listen))


def _address(option: str, text: str) -> Address:
    try:
        return address_of(text)
    except ValueError as error:
        raise InvalidUse(f"{option}: {error}") from error


def _aggregator(options: argparse.Namespace) -> int:
    listen = _address("--listen", options.listen)
    advertise = _address("--advertise", options.advertise) if options.advertise else None
    if (advertise or listen)[0] in _ANY:
        option = "--advertise" if advertise else "--listen"
        raise InvalidUse(
            f"{option} {getattr(options, option[2:])}: processes cannot reach that. "
            "Add --advertise HOST:PORT with the address at which they reach this aggregator"
        )
    switch = switch_id(options.switch)
    place = Place(options.place)
    ports = [name for name in options.xdp.split(",") if name]
    if (place is Place.XDP) != bool(ports):
        raise InvalidUse(
            "--place xdp and --xdp DEVICE,DEVICE with all ports of the switch go together"
        )
    if place is Place.XDP and advertise is not None:
        raise InvalidUse("--advertise: a switch in the kernel is reached at --listen alone")

    if options.forward and place is not Place.SWITCH:
        raise InvalidUse("--forward: in this place the kernel does not forward data")
    forwarding = Forwarding(options.forward) if options.forward else None

    async def serve() -> None:
        controller = addresses_of(options.url)
        if place is Place.XDP:
            aggregator: Aggregator = XdpAggregator(controller, switch, listen, ports)
        else:
            aggregator = Aggregator(controller, switch, listen, advertise, place=place,
                                    forwarding=forwarding)  # fmt: skip

        async def tell() -> None:
            try:
                async with asyncio.timeout(_QUIET_SECONDS):
                    await aggregator.is_started.wait()
            except TimeoutError:
                why = aggregator.link.trouble or "its switch is not settled yet"
                announcer.say("waiting", {"controller": options.url, "why": why})
            await aggregator.is_started.wait()
            host, port = aggregator.advertised
            facts = {"switch": options.switch, "host": host, "port": port}
            announcer.say("aggregator", facts)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(tell())
            tasks.create_task(aggregator.run())

    with _announcer(options.json) as announcer:
        return _until_told(serve())


def _status(options: argparse.Namespace) -> int:
    if options.metrics and options.json:
        raise InvalidUse("--metrics and --json exclude each other")
    addresses = addresses_of(options.url)
    members = asyncio.run(_ask_all(addresses))
    # One that was cut off may not know yet that another one leads.
    leaders = (one for one in members if one.get("role") == "leader")
    leader = max(leaders, key=lambda one: int(one["term"]), default=None)
    # Of a leader that was asked and does not answer as one, the others may not know yet.
    elsewhere = [at for one in members if (at := _leader_of(one)) and at not in addresses]
    has_majority = leader is not None or bool(elsewhere)
    if options.metrics:
        print(*metrics_of(has_majority, members, leader), sep="\n")
    elif options.json:
        print(json.dumps({"majority": has_majority, "members": members}))
    else:
        for one in members:
            print(_line(one))
        if leader is not None:
            _print_network(leader)
        elif elsewhere:
            host, port = elsewhere[-1]
            print(f"the leader at {host}:{port} was not reached: name all members in the URL, "
                  "by addresses that are reached from here")  # fmt: skip
        else:
            print("no majority: reliable delivery stands still once a process or a link fails")
    return 0 if has_majority else NO_MAJORITY


def _leader_of(member: Frame) -> Address | None:
    """Return where the leader is that a member knows."""
    return address_in(member.get("leader_at")) if member.get("majority") else None


async def _ask_all(addresses: Sequence[Address]) -> list[Frame]:
    """Return what members answer, and that of the leader if they name another address."""

    async def ask(address: Address) -> Frame:
        try:
            found = await ask_once(address, {"op": "status"})
        except (OSError, EOFError, TimeoutError, TocError) as error:
            found = {"problem": f"no answer: {error or type(error).__name__}"}
        return {"address": f"{address[0]}:{address[1]}", **found}

    members = [*await asyncio.gather(*(ask(one) for one in addresses))]
    if not any(one.get("role") == "leader" for one in members):
        named = [(one["term"], at) for asked, one in zip(addresses, members, strict=True)
                 if (at := _leader_of(one)) and not is_foreign(at, asked)]  # fmt: skip
        _, leader = max(named, default=(0, addresses[0]))
        if leader not in addresses:
            members.append(await ask(leader))
    return members


def _line(one: Frame) -> str:
    if "role" not in one:
        return f"{one['address']}  {one['problem']}"
    text = f"{one['address']}  member {one['member']}  {one['role']}  term {one['term']}"
    return f"{text}  {one['problem']}".rstrip()


def _print_network(leader: Frame) -> None:
    network = leader.get("network")
    if network is None:
        print("the network is not founded yet")
        return
    print(f"racks {network['racks']}  spines {network['spines']}  cores {network['cores']}  "
          f"T {network['interval_ns'] / 1e6:g} ms  place {network['place']}")  # fmt: skip
    if network["drain_mbit"]:
        print(f"outputs drain {network['drain_mbit']:g} Mbit/s  mark above "
              f"{network['mark_bytes']} bytes")  # fmt: skip
    for switch in leader["switches"]:
        state = _state(switch)
        name = name_of_switch(switch["switch"])
        print(f"aggregator {name}  {switch['host']}:{switch['port']}{state}")
    names = {one["process"]: one["name"] for one in leader["processes"] if one["name"]}
    for process in leader["processes"]:
        print(f"process {process['process']}  {process['name']}{_state(process)}")
    for link in leader.get("dead_links", ()):
        print(f"dead {' to '.join(link)}")
    for one in leader["lagging"]:
        print(f"lagging {' to '.join(one['link'])}  by {one['behind_ms']:g} ms  from "
              f"{' to '.join(one['hop'])} on  cause {one['cause']}")  # fmt: skip
    for one in leader.get("held", ()):
        print(f"held by {one['process']}  by {one['behind_ms']:g} ms  "
              f"waits for {one['waits_for'] or 'nobody'}  cause {one['cause']}")  # fmt: skip
    for source, to in leader.get("forwarding", ()):
        print(f"forwarding from {source} to {to}: their packets are lost on the way")
    for failure in leader["unsettled"]:
        waiting = [names.get(one, f"process {one}") for one in failure["waiting"]]
        whom = ", ".join(waiting) or "a cable"
        print(f"failure {failure['failure']} waits for {whom}")


def _state(node: Frame) -> str:
    """Return what is wrong with a node, if anything."""
    drops = node.get("kernel_drops", 0)
    told = f"  kernel dropped {drops}: its receive buffer was full" if drops else ""
    return told if node["connected"] else f"  not connected{told}"


def _announcer(as_json: bool) -> Announcer:
    """Return what prints lines that say what runs; nothing if this program has no output."""
    if sys.stdout is None:  # another file may have its number
        return Announcer(_NO_FILE, as_json)
    try:
        return Announcer(sys.stdout.fileno(), as_json)
    except (AttributeError, OSError, ValueError):  # a program has put something else in its place
        return Announcer(sys.stdout, as_json)


def _until_told(coroutine: Coroutine[Any, Any, None]) -> int:
    """Run until SIGTERM or SIGINT."""

    async def body() -> None:
        task = asyncio.ensure_future(coroutine)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            return

    try:
        with promptly():
            asyncio.run(body())
    except BaseExceptionGroup as group:
        raise first_error(group) from None
    return 0
