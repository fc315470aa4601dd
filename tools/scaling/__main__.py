"""How manytail and its rivals scale with threads, measured on a machine with many cores that has nothing installed.

    python tools/scaling pack [ARCHIVE]      packs build/scaling/manytail-scaling.tar.gz, at most 60 MB
    python tools/scaling page RESULT.json    draws what such a machine measured: a page, RESULT.html
    python tools/scaling docs                writes docs/scaling.json, such a result, into docs/design/record.md

On the machine, in at most eight minutes: tar xzf manytail-scaling.tar.gz && manytail-scaling/run RESULT.json
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "bench"))


def main(arguments: list[str]) -> int:
    match arguments:
        case ["pack", *archive] if len(archive) < 2:
            from pack import pack

            pack(Path(*archive) if archive else ROOT / "build/scaling/manytail-scaling.tar.gz")
        case ["page", result]:
            from page_of_curves import write

            print(*write(Path(result)), sep="\n")
        case ["docs"]:
            from page_of_curves import write_docs

            print(*write_docs(), sep="\n")
        case _:
            print((__doc__ or "").rstrip(), file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
