"""Taking over a table that Katib made, in place, on each database."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, make_url, text

from dbmanager.databases import parse_url, url_from_environment
from dbmanager.limits import check
from dbmanager.migrate import connect
from dbmanager.rows import NewRow, Origin, RefusedError, Report, Selection, UnavailableError, database_time
from dbmanager.schema import VERSION_TABLE
from dbmanager.store import Store
from dbmanager.takeover import Observed, plan

KATIB = {
    "sqlite": "CREATE TABLE observation_logs (trial_name VARCHAR(255) NOT NULL, "
    "id INTEGER PRIMARY KEY AUTOINCREMENT, time DATETIME, metric_name VARCHAR(255) NOT NULL, value TEXT NOT NULL)",
    "postgresql": "CREATE TABLE observation_logs (trial_name VARCHAR(255) NOT NULL, id SERIAL PRIMARY KEY, "
    "time TIMESTAMP(6), metric_name VARCHAR(255) NOT NULL, value TEXT NOT NULL)",
    "mysql": "CREATE TABLE observation_logs (trial_name VARCHAR(255) NOT NULL, id INT AUTO_INCREMENT PRIMARY KEY, "
    "time DATETIME(6), metric_name VARCHAR(255) NOT NULL, value TEXT NOT NULL)",
}
"""The table as Katib's DB manager makes it."""
INSERT = "INSERT INTO observation_logs (trial_name, time, metric_name, value) VALUES "


def execute(url: str, *statements: str) -> None:
    engine = create_engine(parse_url(url))
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


@pytest.fixture
def katib(kind: str, database_url: str) -> str:
    """A database that Katib's DB manager has used."""
    execute(
        database_url,
        KATIB[kind],
        INSERT + "('old', '2024-05-01 10:00:00.250000', 'loss', '0.5')",
        INSERT + "('old', '2024-05-01 10:00:01', 'loss', '0.25')",
    )
    return database_url


def read(store: Store, trial: str) -> list[tuple[str, str, str]]:
    return [(row.rfc3339, row.name, row.value) for chunk in store.rows(Selection(trial)) for row in chunk]


def test_rows_are_kept_and_both_writers_go_on(katib: str, kind: str) -> None:
    store = Store.open(katib)
    execute(katib, INSERT + "('old', '2024-05-01 10:00:02.5', 'loss', '0.125')")
    row = NewRow(
        *database_time("2024-05-01T10:00:03.000000001Z"), "loss", "0.1 😀" if kind != "mysql" else "0.1", 7
    )
    store.report(Report("old", [row], Origin("ns", "pod", "s"))).result(30)
    assert read(store, "old") == [
        ("2024-05-01T10:00:00.25Z", "loss", "0.5"),
        ("2024-05-01T10:00:01Z", "loss", "0.25"),
        ("2024-05-01T10:00:02.5Z", "loss", "0.125"),
        ("2024-05-01T10:00:03.000000001Z", "loss", row.value),
    ]
    assert store.delete("old", "ns") == 4
    store.close()


def test_the_table_gets_nullable_columns_an_index_and_64_bits(katib: str, kind: str) -> None:
    Store.open(katib).close()
    engine = create_engine(parse_url(katib))
    found = inspect(engine)
    columns = {column["name"]: column for column in found.get_columns("observation_logs")}
    assert list(columns) == [
        "trial_name",
        "id",
        "time",
        "metric_name",
        "value",
        "namespace",
        "stream",
        "step",
        "ns",
    ]
    assert all(columns[name]["nullable"] for name in ("namespace", "stream", "step", "ns"))
    indexes = {tuple(index["column_names"]) for index in found.get_indexes("observation_logs")}
    assert ("trial_name", "time", "id") in indexes
    assert {"observation_logs", "streams", VERSION_TABLE} == {
        name for name in found.get_table_names() if not name.startswith("sqlite")
    }
    if kind != "sqlite":  # its INTEGER has 64 bits
        assert str(columns["id"]["type"]).startswith("BIGINT")
        beyond = 2**31 + 5
        execute(
            katib,
            INSERT.replace("(trial_name", "(id, trial_name").replace(
                "VALUES ", f"VALUES ({beyond}, 't', '2024-05-01', 'm', '1')"
            ),
        )
        store = Store.open(katib)
        if kind == "postgresql":
            execute(katib, f"SELECT setval(pg_get_serial_sequence('observation_logs', 'id'), {beyond})")
        store.report(Report("t", [NewRow(*database_time("2024-05-02T00:00:00Z"), "m", "2")])).result(30)
        assert [row.id for chunk in store.rows(Selection("t")) for row in chunk] == [beyond, beyond + 1]
        store.close()
    engine.dispose()


def test_a_second_start_changes_nothing(katib: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Store.open(katib).close()
    Store.open(katib, migrate=False).close()


def test_starts_at_the_same_time_do_not_disturb_each_other(katib: str, kind: str) -> None:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - here only

    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(Store.open, [katib] * 4))
    for store in stores:
        assert len(read(store, "old")) == 2
        store.close()


def test_columns_that_were_taken_away_come_back(katib: str, kind: str) -> None:
    Store.open(katib).close()
    execute(
        katib, "DROP TABLE observation_logs", KATIB[kind], INSERT + "('new', '2024-05-01 10:00:00', 'm', '1')"
    )
    store = Store.open(katib)
    assert read(store, "new") == [("2024-05-01T10:00:00Z", "m", "1")]
    store.close()


def test_a_database_of_a_newer_version_is_refused(database_url: str) -> None:
    Store.open(database_url).close()
    execute(database_url, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")  # noqa: S608 - a constant
    with pytest.raises(RefusedError, match="newer DB manager \\(revision 9999, this one knows 0001\\)"):
        Store.open(database_url)


@pytest.fixture
def powerless(katib: str, kind: str) -> Iterator[str]:
    """The same database as somebody who may only read and write rows."""
    url = make_url(katib)
    if kind == "sqlite":
        pytest.skip("SQLite has no users")
    if kind == "postgresql":
        name = f"plain_{url.database}"
        execute(
            katib,
            f"CREATE ROLE {name} LOGIN",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON observation_logs TO {name}",
            f"GRANT USAGE ON SEQUENCE observation_logs_id_seq TO {name}",
        )
        undo = [f"DROP OWNED BY {name}", f"DROP ROLE {name}"]
    else:
        name = str(url.database)[-20:]
        execute(
            katib,
            f"CREATE USER '{name}'@'%' IDENTIFIED BY 'plain'",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {url.database}.* TO '{name}'@'%'",
        )
        undo = [f"DROP USER '{name}'@'%'"]
    yield url.set(username=name, password="plain").render_as_string(hide_password=False)  # noqa: S106
    execute(katib, *undo)


@pytest.mark.parametrize("kind", [
    pytest.param("postgresql", marks=pytest.mark.postgresql), pytest.param("mysql", marks=pytest.mark.mysql),
])  # fmt: skip
def test_without_the_right_to_alter_it_prints_the_statements_and_they_are_all_it_takes(
    powerless: str, katib: str, kind: str
) -> None:
    with pytest.raises(RefusedError, match="may not change its tables") as error:
        Store.open(powerless)
    message, _, script = str(error.value).partition(":\n")
    statements = [line.strip().rstrip(";") for line in script.splitlines()]
    assert message.endswith("run these statements, then start again")
    assert any(statement.startswith("ALTER TABLE observation_logs") for statement in statements)
    execute(katib, *statements)
    if kind == "postgresql":
        name = make_url(powerless).username
        execute(katib, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name}")
    store = Store.open(powerless)
    row = NewRow(*database_time("2024-05-02T00:00:00Z"), "m", "2")
    store.report(Report("old", [row], Origin("ns", "pod", "s"))).result(30)
    assert len(read(store, "old")) == 3
    store.close()


CHARSETS = {"latin1": ("é€", "α"), "utf8mb3": ("é中", "😀")}


@pytest.mark.mysql
@pytest.mark.parametrize("kind", ["mysql"])
@pytest.mark.parametrize(("charset", "kept", "refused"), [(name, *texts) for name, texts in CHARSETS.items()])
def test_a_table_of_a_narrow_character_set_refuses_what_does_not_fit_until_it_is_converted(
    kind: str, database_url: str, charset: str, kept: str, refused: str
) -> None:
    execute(database_url, f"{KATIB[kind]} CHARACTER SET {charset}")
    store = Store.open(database_url)

    def report(value: str) -> Report:
        return Report("T", [NewRow(*database_time("2024-05-02T00:00:00Z"), "m", value)])

    check(report(kept), store.database.codecs)
    store.report(report(kept)).result(30)
    with pytest.raises(
        RefusedError, match=r"does not fit the table's character set.*--convert-character-set"
    ):
        check(report(refused), store.database.codecs)
    with pytest.raises(RefusedError, match="the database cannot hold it"):
        store.report(report(refused)).result(30)
    assert [value for _, _, value in read(store, "T")] == [kept]
    assert read(store, "t") == []  # whatever the collation says
    assert [key.name for key in store.trials()] == ["T"]
    store.close()
    store = Store.open(database_url, convert=True)
    assert store.database.codecs == {}
    check(report(refused), store.database.codecs)
    store.report(report(refused)).result(30)
    assert [value for _, _, value in read(store, "T")] == [kept, refused]
    store.close()
    Store.open(database_url, migrate=False, convert=True).close()


@pytest.mark.mysql
@pytest.mark.parametrize("kind", ["mysql"])
def test_one_row_that_the_database_cannot_hold_does_not_fail_its_neighbours(
    kind: str, database_url: str
) -> None:
    execute(database_url, f"{KATIB[kind]} CHARACTER SET latin1")
    store = Store.open(database_url)
    futures = [
        store.report(
            Report(
                "t", [NewRow(*database_time("2024-05-02T00:00:00Z"), "m", value)], Origin("n", "p", f"s{i}")
            )
        )
        for i, value in enumerate(["1", "α", "3"] * 20)
    ]
    failed = [index for index, future in enumerate(futures) if future.exception(30) is not None]
    assert failed == list(range(1, 60, 3))
    assert len(read(store, "t")) == 40
    store.close()


def test_a_times_column_without_fractions_is_widened() -> None:
    seen = Observed(
        kind="mysql", columns={"id": "int(11)", "time": "datetime", "namespace": "", "stream": "", "step": "", "ns": ""},
        has_index=True, has_streams=True,
    )  # fmt: skip
    assert plan(seen) == [
        "ALTER TABLE observation_logs MODIFY COLUMN id BIGINT NOT NULL AUTO_INCREMENT, MODIFY COLUMN time DATETIME(6)"
    ]


ENVIRONMENTS = {
    "nothing": ({}, None),
    "mysql with Katib's defaults": (
        {"DB_NAME": "mysql", "DB_USER": "root", "DB_PASSWORD": "p@ss:word"},
        "mysql+pymysql://root:p%40ss%3Aword@katib-mysql:3306/katib",
    ),
    "mysql": (
        {
            "DB_NAME": "mysql", "DB_USER": "u", "DB_PASSWORD": "p", "KATIB_MYSQL_DB_HOST": "db",
            "KATIB_MYSQL_DB_PORT": "3307", "KATIB_MYSQL_DB_DATABASE": "trials",
        },
        "mysql+pymysql://u:p@db:3307/trials",
    ),
    "postgres": (
        {
            "DB_NAME": "postgres", "DB_USER": "u", "DB_PASSWORD": "p", "KATIB_POSTGRESQL_DB_HOST": "db",
            "KATIB_POSTGRESQL_DB_PORT": "5433", "KATIB_POSTGRESQL_DB_DATABASE": "trials",
            "KATIB_POSTGRESQL_SSL_MODE": "require",
        },
        "postgresql+psycopg://u:p@db:5433/trials?sslmode=require",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("env", "expected"), ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_katibs_variables_give_a_url(env: dict[str, str], expected: str | None) -> None:
    assert url_from_environment(env) == expected


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"DB_NAME": "oracle"}, "DB_NAME: 'oracle' is neither mysql nor postgres"),
        (
            {"DB_NAME": "mysql", "KATIB_MYSQL_DB_PORT": "many"},
            "KATIB_MYSQL_DB_PORT: 'many' is no port number",
        ),
    ],
)
def test_variables_that_make_no_sense_are_refused_by_name(env: dict[str, str], reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        url_from_environment(env)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("not a url", "no database URL"),
        ("oracle://h/x", "unknown database 'oracle'"),
        ("sqlite://", "SQLite needs a file"),
        ("sqlite:///:memory:", "SQLite needs a file"),
        ("sqlite:////no/such/folder/x.db", "folder /no/such/folder of the SQLite file does not exist"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_the_next_step(url: str, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        connect(url)


@pytest.mark.parametrize(
    "url", ["postgresql://u:secret@127.0.0.1:1/x", "mysql://u:secret@127.0.0.1:1/x"]
)  # fmt: skip
def test_a_database_that_is_not_there_is_unavailable_and_no_password_is_told(url: str) -> None:
    with pytest.raises(UnavailableError, match="the database did not answer") as error:
        connect(url)
    assert "secret" not in str(error.value)


def test_a_file_that_is_no_sqlite_database_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("hello " * 100)
    with pytest.raises(UnavailableError, match="file is not a database"):
        connect(f"sqlite:///{tmp_path}/x.db")


def test_logs_of_the_migration_name_no_password(katib: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        Store.open(katib).close()
    assert "trialtap:trialtap" not in caplog.text
