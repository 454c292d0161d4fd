"""Dicts, JSON, regular expressions, threads, forks and subprocesses."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading


def build(first, count):
    return {
        f"key {number}": {
            "number": number,
            "square": number * number,
            "big": number**20,
            "words": [f"word {number % 97}", "sheaf" * (number % 13)],
            "nothing": None,
        }
        for number in range(first, first + count)
    }


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def work(place, results):
    table = build(place * 1000, 12_000)
    text = json.dumps(table)
    again = json.loads(text)
    assert again == table
    for key in list(again)[::3]:
        del again[key]
    found = sum(len(match) for match in re.findall(r"(?:sheaf){2,}", text))
    results[place] = (digest(again), found, len(text))


def main():
    results = [None] * 4
    threads = [threading.Thread(target=work, args=(place, results)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        print(*result)

    text = ""
    for number in range(200_000):
        text += chr(97 + number % 26)
    buffer = bytearray()
    for number in range(200_000):
        buffer += number.to_bytes(4, "little")
    print(hashlib.sha256(text.encode()).hexdigest(), hashlib.sha256(buffer).hexdigest())

    for number in range(8):
        child = subprocess.run(
            [sys.executable, "-c", f"print(sum(len(str(n)) for n in range({number} * 10000)))"],
            check=True,
            capture_output=True,
            text=True,
        )
        print(child.stdout.strip())

    for number in range(8):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, digest(build(number, 500)).encode())
            os._exit(number)
        os.close(writer)
        said = os.read(reader, 64).decode()
        os.close(reader)
        print(said, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


main()
