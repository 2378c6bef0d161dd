import asyncio, json, os
from tests.live.up.test_terms import measure


def test_big(tmp_path):
    print(
        json.dumps(
            asyncio.run(
                measure(tmp_path / "up", float(os.environ.get("S", "6")), int(os.environ.get("T", "1")))
            ),
            indent=1,
        )
    )
