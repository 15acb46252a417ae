"""Arrow's JDBC driver of Flight SQL, in a JVM: what DBeaver, Tableau and Java programs use.

Java and the driver are large, so this test runs by ``make test-spark``: PySpark has Ivy, which
fetches the driver from Maven's registry, and py4j, which calls Java.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import farrow
    from farrow.flight import FlightSqlServer

pytest_plugins = ["flight_cases"]

REQUIRED = os.environ.get("FARROW_SPARK") == "require"
VERSION = "18.3.0"
# The driver's memory needs it: https://arrow.apache.org/java/current/flight_sql_jdbc_driver.html
OPENED = "--add-opens=java.base/java.nio=ALL-UNNAMED"


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Any]:
    """``java.sql.DriverManager`` of a JVM with the driver."""
    try:
        import pyspark
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
    except ImportError:
        assert not REQUIRED, "pyspark is not installed"
        pytest.skip("pyspark is not installed: make test-spark")
    if shutil.which("java") is None:
        assert not REQUIRED, "java is not installed"
        pytest.skip("java is not installed: make test-spark")
    jars = Path(pyspark.__file__).parent / "jars"
    [ivy], [py4j] = jars.glob("ivy-*.jar"), jars.glob("py4j*.jar")
    module = ["org.apache.arrow", "flight-sql-jdbc-driver", VERSION]
    command = ["java", "-jar", str(ivy), "-dependency", *module, "-confs", "default"]
    pattern = str(tmp_path / "[artifact].[ext]")
    done = subprocess.run(
        [*command, "-retrieve", pattern], capture_output=True, text=True, timeout=300, check=False
    )
    driver = tmp_path / "flight-sql-jdbc-driver.jar"
    if not driver.exists():
        # The registry of Maven is not one that each machine with tests reaches.
        pytest.skip(f"no driver from Maven: {done.stdout[-300:]}")
    port = launch_gateway(
        classpath=str(driver), jarpath=str(py4j), javaopts=[OPENED], die_on_exit=True
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    gateway.jvm.java.lang.Class.forName("org.apache.arrow.driver.jdbc.ArrowFlightJdbcDriver")
    yield gateway.jvm.java.sql.DriverManager
    gateway.shutdown()


def rows(found: Any, *columns: int) -> list[tuple[str, ...]]:
    """Some columns of a java.sql.ResultSet, as text."""
    texts = []
    while found.next():
        texts.append(tuple(found.getString(column) for column in columns))
    found.close()
    return texts


def test_jdbc(drivers: Any, server: FlightSqlServer, trades: farrow.HugeTable) -> None:
    address = f"jdbc:arrow-flight-sql://127.0.0.1:{server.port}?useEncryption=false"
    connection = drivers.getConnection(f"{address}&token={server.token}")
    about = connection.getMetaData()
    assert (about.getDatabaseProductName(), about.isReadOnly()) == ("Farrow", True)
    assert rows(about.getTables(None, None, "%", None), 2, 3, 4) == [("main", "trades", "TABLE")]
    columns = rows(about.getColumns(None, None, "trades", None), 4, 6)
    assert columns == [("n", "BIGINT"), ("price", "DOUBLE")]
    assert rows(about.getPrimaryKeys(None, None, "trades"), 1) == []

    statement = connection.createStatement()
    whole = 'select count(*), sum(price) from "temp"."main"."trades" where n < 10'
    assert rows(statement.executeQuery(whole), 1, 2) == [("10", "45.0")]
    prepared = connection.prepareStatement("select price from trades where n = ? or n = ?")
    prepared.setLong(1, 3)
    prepared.setLong(2, 5)
    assert sorted(rows(prepared.executeQuery(), 1)) == [("3.0",), ("5.0",)]
    with pytest.raises(Exception, match="CREATE is refused"):
        statement.executeQuery("create table x as select 1")
    for one in (prepared, statement, connection):
        one.close()

    by_password = drivers.getConnection(f"{address}&user=anybody&password={server.token}")
    statement = by_password.createStatement()
    assert rows(statement.executeQuery("select 42"), 1) == [("42",)]
    for one in (statement, by_password):
        one.close()
    with pytest.raises(Exception, match="token is wrong"):
        drivers.getConnection(f"{address}&token=wrong").createStatement().executeQuery("select 1")
