"""Checks `cargo metadata` on standard input against a deny.toml.

Every package's licence expression must be satisfiable with the licences that
`[licenses] allow` lists, and every package that is not of the workspace must
come from a registry that `[sources] allow-registry` lists.
"""

import json
import re
import sys
import tomllib


def satisfiable(expression, allowed):
    """Whether an SPDX expression (AND, OR, WITH, parentheses) can be met."""
    tokens = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))
    place = 0

    def peek():
        return tokens[place] if place < len(tokens) else None

    def take():
        nonlocal place
        place += 1
        return tokens[place - 1]

    def one():
        token = take()
        if token == "(":
            value = either()
            take()
            return value
        if peek() == "WITH":
            take()
            token = f"{token} WITH {take()}"
        return token in allowed

    def both():
        value = one()
        while peek() == "AND":
            take()
            value = one() and value
        return value

    def either():
        value = both()
        while peek() == "OR":
            take()
            value = both() or value
        return value

    return either() and place == len(tokens)


def main():
    with open(sys.argv[1], "rb") as file:
        deny = tomllib.load(file)
    allowed = set(deny["licenses"]["allow"])
    registries = set(deny["sources"]["allow-registry"])
    metadata = json.load(sys.stdin)
    members = set(metadata["workspace_members"])

    complaints = []
    for package in metadata["packages"]:
        name = f"{package['name']} {package['version']}"
        licence = package["license"]
        if not licence or not satisfiable(licence, allowed):
            complaints.append(f"{name}: licence {licence!r} is not allowed")
        source = package["source"]
        if package["id"] not in members and (
            source is None or source.removeprefix("registry+") not in registries
        ):
            complaints.append(f"{name}: source {source!r} is not allowed")

    for complaint in complaints:
        print(complaint, file=sys.stderr)
    print(f"{len(metadata['packages'])} packages, {len(complaints)} complaints")
    sys.exit(bool(complaints))


main()
