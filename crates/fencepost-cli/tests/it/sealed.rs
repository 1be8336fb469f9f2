//! An empty git repository, no inherited variables, and a fleet of its own.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU64, Ordering},
};

pub struct Sealed {
    dir: tempfile::TempDir,
    db: Option<String>,
}

/// What a command said and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Sealed {
    /// The embedded database, where `fence init` puts it.
    pub fn sqlite() -> Self {
        let sealed = Self { dir: tempfile::tempdir().expect("a directory"), db: None };
        let made = sealed.command("git").args(["init", "-q"]).status().expect("git");
        assert!(made.success(), "git init: {made}");
        sealed
    }

    /// A schema that no other test uses.
    pub fn postgres() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let base = std::env::var("FENCE_TEST_POSTGRES").expect(
            "FENCE_TEST_POSTGRES is not set: run the tests with `make test`, which starts a private PostgreSQL",
        );
        let schema = format!("cli{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { db: Some(format!("{base}?schema={schema}&sslmode=disable")), ..Self::sqlite() }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Where the fleet is, for opening it from the test itself.
    pub fn url(&self) -> String {
        self.db.clone().unwrap_or_else(|| self.path().join(".fence/fence.db").display().to_string())
    }

    /// A program that sees nothing of the test's own environment.
    pub fn command(&self, program: &str) -> Command {
        let bin: PathBuf = Path::new(env!("CARGO_BIN_EXE_fence")).parent().expect("its directory").into();
        let mut command = Command::new(program);
        command
            .current_dir(self.path())
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
            .env("HOME", self.path());
        if let Some(db) = &self.db {
            command.env("FENCE_DB", db);
        }
        command
    }

    pub fn sh(&self, script: &str) -> Said {
        said(self.command("bash").args(["-c", script]).output().expect("bash"))
    }

    /// `fence` with these words, for run `me` unless they say otherwise.
    pub fn fence(&self, words: &[&str]) -> Said {
        said(self.command("fence").env("FENCE_RUN", "me").args(words).output().expect("fence"))
    }

    /// The same, and it must succeed.
    #[track_caller]
    pub fn ok(&self, words: &[&str]) -> String {
        let said = self.fence(words);
        assert_eq!(said.code, 0, "fence {words:?}: {said:?}");
        said.out
    }
}

fn said(output: Output) -> Said {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    Said { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
}

/// Runs a test on both databases.
#[macro_export]
macro_rules! on_both {
    ($($(#[$doc:meta])* fn $name:ident($sealed:ident: Sealed) $body:block)*) => {
        $($(#[$doc])* fn $name($sealed: $crate::sealed::Sealed) $body)*
        mod sqlite {
            $(#[test] fn $name() { super::$name($crate::sealed::Sealed::sqlite()); })*
        }
        mod postgres {
            $(#[test] fn $name() { super::$name($crate::sealed::Sealed::postgres()); })*
        }
    };
}
