"""The commands of uslub inside gdb: uslub info, explain, list, holders, slabinfo.

Made by 'uslub gdb-script'. Load it with 'gdb -x FILE' or, inside gdb, 'source FILE'; the name of
the file must end in '.py'. Each command calls the program uslub on the process or core file that
gdb looks at. The environment variable USLUB names another program.
"""

import os
import re
import subprocess

import gdb

_PROGRAM = @PROGRAM@


def _target():
    """The number of the process, or the name of the core file."""
    connection = getattr(gdb.selected_inferior(), "connection", None)
    kind = getattr(connection, "type", "native")
    if kind not in ("native", "core"):
        raise gdb.GdbError(
            "uslub reads processes of this machine and core files, not targets of the kind '%s'"
            % kind
        )
    files = gdb.execute("info files", to_string=True)
    core = re.search(r"core dump file:\s+[`'‘](.+)['’], file type", files)
    if core:
        return core.group(1)
    pid = gdb.selected_inferior().pid
    if pid <= 0:
        raise gdb.GdbError("no process and no core file: use 'run', 'attach' or 'core-file' first")
    return str(pid)


def _said(*arguments):
    """What uslub prints; its message as gdb's error if it fails."""
    program = os.environ.get("USLUB", _PROGRAM)
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            check=False,
        )
    except OSError as error:
        raise gdb.GdbError(
            "cannot start '%s': %s (the environment variable USLUB names another program)"
            % (program, error.strerror)
        )
    if done.returncode != 0:
        raise gdb.GdbError(done.stderr.decode(errors="replace").strip())
    return done.stdout.decode(errors="replace")


def _address(expression):
    """The address of an expression: the value of a pointer or number, else its place."""
    if not expression.strip():
        raise gdb.GdbError("an address is missing: any expression, for example 'node->next'")
    return _address_of(gdb.parse_and_eval(expression))


def _address_of(value):
    value_type = value.type.strip_typedefs()
    references = (gdb.TYPE_CODE_REF, getattr(gdb, "TYPE_CODE_RVALUE_REF", None))
    if value_type.code in references:
        value = value.referenced_value()
        value_type = value.type.strip_typedefs()
    if value_type.code in (gdb.TYPE_CODE_PTR, gdb.TYPE_CODE_INT):
        return "0x%x" % (int(value) % (1 << 64))
    if value.address is None:
        raise gdb.GdbError("a value of the type '%s' has no address" % value.type)
    return "0x%x" % int(value.address)


class Uslub(gdb.Command):
    """Look into the heap of a program on uslub.

uslub info               Where the memory is; live objects of each cache.
uslub explain EXPRESSION What an address is: live, free, in which sheaf.
uslub holders EXPRESSION Who points to the object at an address.
uslub list CACHE [N]     The live objects of a cache, N at most.
uslub slabinfo           The kernel's table.
$_uslub_cache(POINTER)   The name of the cache of an object, or "(none)"."""

    def __init__(self):
        super().__init__("uslub", gdb.COMMAND_DATA, gdb.COMPLETE_NONE, True)

    def invoke(self, argument, from_tty):
        gdb.execute("help uslub")


class Info(gdb.Command):
    """Where the memory of the program is, and the live objects of each cache.
Usage: uslub info [--all]"""

    def __init__(self):
        super().__init__("uslub info", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        gdb.write(_said("info", _target(), *gdb.string_to_argv(argument)))


class Explain(gdb.Command):
    """What an address is: live, free, in which sheaf, not uslub's.
Usage: uslub explain EXPRESSION"""

    def __init__(self):
        super().__init__("uslub explain", gdb.COMMAND_DATA, gdb.COMPLETE_EXPRESSION)

    def invoke(self, argument, from_tty):
        gdb.write(_said("explain", _target(), _address(argument)))


class Holders(gdb.Command):
    """Who points to the object at an address; registers that do come last.
Usage: uslub holders EXPRESSION"""

    def __init__(self):
        super().__init__("uslub holders", gdb.COMMAND_DATA, gdb.COMPLETE_EXPRESSION)

    def invoke(self, argument, from_tty):
        address = _address(argument)
        gdb.write(_said("holders", _target(), address))
        _write_registers(int(address, 16))


class List(gdb.Command):
    """The live objects of a cache.
Usage: uslub list CACHE [N]"""

    def __init__(self):
        super().__init__("uslub list", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        words = gdb.string_to_argv(argument)
        if not words:
            raise gdb.GdbError("the name of a cache is missing; 'uslub info' shows the caches")
        limit = ["--limit", words[1]] if len(words) > 1 else []
        gdb.write(_said("list", _target(), words[0], *limit))


class Slabinfo(gdb.Command):
    """The caches in the columns of /proc/slabinfo.
Usage: uslub slabinfo"""

    def __init__(self):
        super().__init__("uslub slabinfo", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        gdb.write(_said("slabinfo", _target()))


class CacheOf(gdb.Function):
    """The name of the cache of the object at an address; "(none)" if there is none.
Usage: $_uslub_cache(POINTER)"""

    def __init__(self):
        super().__init__("_uslub_cache")

    def invoke(self, pointer):
        text = _said("explain", _target(), _address_of(pointer))
        found = re.search(r" of cache '(.*)' \(", text.split("\n", 1)[0])
        return found.group(1) if found else "(none)"


def _write_registers(address):
    """The registers of all threads that point into the object at an address."""
    text = _said("explain", _target(), "0x%x" % address)
    slot = re.search(r"\((\d+) bytes, (0x[0-9a-f]+)\)", text.split("\n", 1)[0])
    start, size = (int(slot.group(2), 16), int(slot.group(1))) if slot else (address, 1)
    selected = gdb.selected_thread()
    is_held = False
    try:
        for thread in gdb.selected_inferior().threads():
            thread.switch()
            frame = gdb.newest_frame()
            for register in frame.architecture().registers("general"):
                value = frame.read_register(register)
                if value.type.sizeof != 8 or value.is_optimized_out:
                    continue
                into = (int(value) % (1 << 64)) - start
                if 0 <= into < size:
                    is_held = True
                    place = (register.name, thread.num, into)
                    gdb.write("register %s of thread %d → +%d\n" % place)
    finally:
        if selected is not None:
            selected.switch()
    if not is_held:
        gdb.write("no register of a thread points to it, as gdb sees them\n")


Uslub()
Info()
Explain()
Holders()
List()
Slabinfo()
CacheOf()
