"""Random joins, subqueries, groups and windows: divided among workers they return the rows that one
process returns.

``FARROW_SQL_RANDOM=1000`` makes the queries as many, and ``FARROW_SQL_RANDOM_SEED`` repeats a run.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from sql_cases import Workers, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import farrow

pytest.importorskip("datafusion")
farrow_sql = pytest.importorskip("farrow_sql")
pytest_plugins = ["sql_cases"]

QUERIES = int(os.environ.get("FARROW_SQL_RANDOM", "25"))
SEED = int(os.environ.get("FARROW_SQL_RANDOM_SEED", "1"))
# Rows, and keys, of which some have no partner in the other tables; of 64 one is null.
TABLES = {"big": (4000, 2500), "mid": (600, 400), "tiny": (20, 15)}
JOINS = ["join", "join", "left join", "right join", "full join"]


@pytest.fixture(scope="module")
def client(workers: Workers) -> Iterator[farrow.Client]:
    """A client of a, and the tables, each in four chunks that lie on both nodes."""
    client = workers.cluster.client("a")
    chance = random.Random(7)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    for name, (rows, keys) in TABLES.items():
        table = client.huge_table(name, schema)
        for chunk in range(4):
            k = [chance.choice([None, *[chance.randrange(keys)] * 63]) for _ in range(rows // 4)]
            v = list(range(chunk * rows // 4, (chunk + 1) * rows // 4))
            table.append(pa.table({"k": k, "v": v}, schema), node="ab"[chunk % 2])
    yield client
    for name in TABLES:
        client.huge_table(name).drop()


def query_of(chance: random.Random) -> str:
    """A query with few rows for each row of its tables."""
    names = [chance.choice(list(TABLES)) for _ in range(chance.randint(2, 4))]
    source = f"{names[0]} t0"
    for number, name in enumerate(names[1:], 1):
        other = chance.randrange(number)
        left = chance.choice([f"t{other}.k", f"t{other}.k", f"t{other}.v"])
        right = chance.choice([f"t{number}.k", f"t{number}.v"])
        source += f" {chance.choice(JOINS)} {name} t{number} on {left} = {right}"
    terms = []
    for _ in range(chance.randint(0, 2)):
        column = f"t{chance.randrange(len(names))}.{chance.choice('kv')}"
        word = chance.choice(["", "not "])
        name = chance.choice(list(TABLES))
        terms.append(
            chance.choice(
                [
                    f"{word}exists (select 1 from {name} u where u.k = {column})",
                    f"({column} < 9 or {word}exists (select 1 from {name} u where u.k = {column}))",
                    f"{column} {word}in (select k from {name} where v < 5)",
                    f"{column} % 3 <> 1",
                ]
            )
        )
    where = f" where {' and '.join(terms)}" if terms else ""
    key = f"t{chance.randrange(len(names))}.k"
    every = ", ".join(f"t{n}.{c} as {c}{n}" for n in range(len(names)) for c in "kv")
    order = ", ".join(f"t{n}.{c}" for n in range(len(names)) for c in "kv")
    ways = [
        f"select {every} from {source}{where}",
        f"select {key} as a, count(*) as b, sum(t0.v) as c from {source}{where} group by {key}",
        f"select distinct {key} as a from {source}{where}",
        f"select count(*) as a, count({key}) as b, max(t1.v) as c from {source}{where}",
        f"select {every}, row_number() over (partition by {key} order by {order}) as r "
        f"from {source}{where}",
        f"select {every} from {source}{where} order by {order} limit 50",
    ]
    return chance.choice(ways)


def test_random_queries(client: farrow.Client) -> None:
    divided = broadcast = 0
    for number in range(QUERIES):
        text = query_of(random.Random(f"{SEED}.{number}"))
        found, prepared = farrow_sql._run._query.Query(text, client, timeout=60).run()
        local = farrow_sql._run._query.LocalQuery(client, text, farrow_sql._deadline.NEVER)
        wanted = local.run(prepared.sources)
        assert sorted(map(repr, rows_of(found))) == sorted(map(repr, rows_of(wanted))), (
            f"query {number} of seed {SEED}: {text}"
        )
        if prepared.plan is not None:
            divided += 1
            broadcast += any(stage.bypassed for stage in prepared.plan.stages)
    # Most are divided, and of these many have a side that each task reads whole.
    assert divided >= 0.8 * QUERIES
    assert broadcast >= 0.2 * QUERIES
