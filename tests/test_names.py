"""Names that were replaced by the field's standard terms do not come back."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("trioha", "monitor", "spark", "tests", "docs", "configs")
SUFFIXES = frozenset({".py", ".md", ".conf", ".java", ".tcss", ".html", ".j2", ".toml"})

OLD_NAMES = re.compile(
    r"\b("
    # HA, net, watermark
    r"Follower|FollowError|owes_since_s|is_proven|is_lasting_name|look_for_ack|SpreadMeter|_hint_offset|needed_from"
    r"|patience_s"
    # store
    r"|offer_next_file|awaits_queues|admit_puts|make_whole|StoredLog|queue_list"
    # remoting, broker, config, command line
    r"|BrokerTable|unasked_responses|HaExtras|_cautions|_contradictions|ValueRefused|tether"
    # recording
    r"|open_tapes?|SessionTape|judging"
    # monitor
    r"|Reel|SlaveNews|happenings|hunt|Steady|Bearing"
    # Spark
    r"|interruptions|Journey|MODELLED"
    r")\b"
)


def test_no_name_that_was_replaced_is_used():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in SUFFIXES and path != Path(__file__) and "vectors" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if OLD_NAMES.search(line)
    ]
    assert found == []
