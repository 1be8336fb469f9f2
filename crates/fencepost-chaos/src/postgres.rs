//! A private PostgreSQL that can be crashed, and whose clock can jump.

use crate::{Result, context};
use std::path::{Path, PathBuf};
use tokio::process::Command;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/postgres");

/// Replaces the server's clock by one that adds the table's interval. The engine reads it as always.
const CLOCK: &str = "
    do $$
    begin
      if to_regclass('chaos.clock') is null then
        create schema chaos;
        create table chaos.clock(ahead interval not null);
        insert into chaos.clock values ('0');
        alter function pg_catalog.clock_timestamp() rename to real_clock_timestamp;
        create function pg_catalog.clock_timestamp() returns timestamptz language sql volatile
          as 'select pg_catalog.real_clock_timestamp() + ahead from chaos.clock';
      end if;
    end $$";

/// Drops the fleets of earlier runs.
const CLEAN: &str = "
    do $$
    declare name text;
    begin
      for name in select nspname from pg_namespace where nspname like 'fleet_%' loop
        execute 'drop schema ' || name || ' cascade';
      end loop;
    end $$";

#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    /// Host and port.
    pub address: String,
}

impl Cluster {
    pub async fn start(dir: &Path) -> Result<Self> {
        let started = script("start", dir).output().await.map_err(context("scripts/postgres"))?;
        let output = String::from_utf8_lossy(&started.stdout).into_owned();
        let address = output.split(['@', '/']).find(|part| part.starts_with("127.0.0.1:"));
        let address = address.ok_or_else(|| {
            format!("PostgreSQL did not start: {output}{}", String::from_utf8_lossy(&started.stderr))
        })?;
        let cluster = Self { dir: dir.into(), address: address.into() };
        cluster.execute(CLOCK).await?;
        cluster.execute(CLEAN).await?;
        cluster.set_ahead(0).await?;
        Ok(cluster)
    }

    /// Stops it like a power cut, and starts it again.
    pub async fn crash(&self) -> Result<()> {
        let crashed = script("restart", &self.dir).output().await.map_err(context("scripts/postgres"))?;
        match crashed.status.success() {
            true => Ok(()),
            false => {
                Err(format!("PostgreSQL did not come back: {}", String::from_utf8_lossy(&crashed.stderr)))
            }
        }
    }

    pub async fn connect(&self) -> Result<tokio_postgres::Client> {
        let url = format!("postgres://fence@{}/postgres?connect_timeout=5", self.address);
        let (client, connection) =
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.map_err(context("PostgreSQL"))?;
        tokio::spawn(connection);
        Ok(client)
    }

    pub async fn execute(&self, sql: &str) -> Result<()> {
        self.connect().await?.batch_execute(sql).await.map_err(context(sql))
    }

    /// The number that a query returns.
    pub async fn count(&self, sql: &str) -> Result<i64> {
        Ok(self.connect().await?.query_one(sql, &[]).await.map_err(context(sql))?.get(0))
    }

    /// How many deadlocks the server's log reports. (Its statistics are late.)
    pub fn deadlocks(&self) -> Result<usize> {
        let data = std::fs::read_to_string(self.dir.join("where")).map_err(context("the cluster"))?;
        let log =
            std::fs::read(self.dir.join(data.trim()).join("log")).map_err(context("PostgreSQL's log"))?;
        Ok(String::from_utf8_lossy(&log).matches("deadlock detected").count())
    }

    pub async fn set_ahead(&self, ms: i64) -> Result<()> {
        self.execute(&format!("update chaos.clock set ahead = interval '1 ms' * {ms}")).await
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::process::Command::new(SCRIPT).arg("stop").arg(&self.dir).arg("immediate").status();
    }
}

fn script(verb: &str, dir: &Path) -> Command {
    let mut command = Command::new(SCRIPT);
    command.arg(verb).arg(dir).stdin(std::process::Stdio::null());
    command
}
