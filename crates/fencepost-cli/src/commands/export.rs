use super::import::Fleet;
use crate::{
    context::{Context, unique},
    foreign::escaped_json,
    modes, out,
};
use clap::Args;
use fencepost::{Code, Error, Result, board};
use fencepost_import::{counted, jsonl};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, BufWriter, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Write the whole fleet as lines of JSON, to move it or to take it away
///
/// Tasks in every state with their notes and progress, agents, channels and what was posted there, how far everybody has
/// read, inboxes, mailboxes with their messages, and routes. `fence import jsonl` takes the file back, on SQLite or on
/// PostgreSQL; tasks keep their numbers, messages get new ones and keep their order. Fences go on above those of this fleet,
/// so that an old token fits no new claim.
///
/// Not in it: keys, runs, claims and locks (a lease does not travel: work that is held is free where it is imported, and
/// `owner` says who had it), request ids, hook deliveries, and the log. `fence --json events --since start` writes the log.
///
/// Others may go on meanwhile. Every item is read at one moment, but not all at the same one; what is added meanwhile may
/// be missing. To move a fleet, stop its agents first. Through a server it takes an admin's key.
///
/// Examples:
///   fence export fleet.jsonl
///   fence export --board auth | jq -r 'select(.type == "task") | .title'
///   fence --db postgres://localhost/fence import jsonl fleet.jsonl
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Export {
    /// Where to, for you alone to read; standard output without it, or for -
    file: Option<PathBuf>,
    /// Only this board and its tasks; may be given several times
    #[arg(long)]
    board: Vec<String>,
    /// Replace the file if it is there
    #[arg(long, requires = "file")]
    force: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Written {
    file: String,
    bytes: u64,
    /// How many items of each type.
    items: BTreeMap<String, usize>,
}

impl Export {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        // A typing error would give a file with nothing in it.
        for name in &self.board {
            context.call(board::Show { board: name.clone(), limit: Some(1) }).await?;
        }
        match self.file.as_deref().filter(|file| *file != Path::new("-")) {
            None => {
                let fleet = Fleet::new(context);
                jsonl::export(&fleet, &self.board, &mut |text| out::say_lines(&escaped_json(text))).await?;
                Ok(ExitCode::SUCCESS)
            }
            Some(path) => {
                let mut file = Draft::of(path, self.force)?;
                let mut write = |text: &str| file.write(&escaped_json(text)).map(|()| true);
                let counts = jsonl::export(&Fleet::new(context), &self.board, &mut write).await?;
                let bytes = file.publish()?;
                let items = counts.into_iter().map(|(kind, count)| (kind.to_owned(), count)).collect();
                let written = Written { file: path.display().to_string(), bytes, items };
                context.print(&written, |written| {
                    let items = written.items.iter().filter(|(kind, _)| *kind != "fleet");
                    let items = counted(&mut items.map(|(kind, count)| (kind.as_str(), *count)));
                    format!("exported to {}: {items}", written.file)
                })
            }
        }
    }
}

/// A file that appears under its name once it is whole.
#[derive(Debug)]
struct Draft {
    path: PathBuf,
    draft: PathBuf,
    file: BufWriter<fs::File>,
    bytes: u64,
    force: bool,
}

impl Draft {
    fn of(path: &Path, force: bool) -> Result<Self> {
        match fs::symlink_metadata(path) {
            Ok(there) if !there.is_file() => {
                return Err(Error::new(
                    Code::Invalid,
                    format!("`{}` is there, and is no file", path.display()),
                )
                .hint("name a file that is not there; - is standard output"));
            }
            Ok(_) if !force => return Err(is_there(path)),
            _ => {}
        }
        let failed = |e: io::Error| unwritable(path, &e);
        let directory = path.parent().unwrap_or(Path::new(""));
        modes::make_directory(directory).map_err(failed)?;
        let draft = directory.join(unique(".fence-export-"));
        let file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft).map_err(failed)?;
        Ok(Self { path: path.into(), draft, file: BufWriter::new(file), bytes: 0, force })
    }

    fn write(&mut self, text: &str) -> Result<()> {
        self.bytes += text.len() as u64;
        self.file.write_all(text.as_bytes()).map_err(|e| unwritable(&self.path, &e))
    }

    fn publish(mut self) -> Result<u64> {
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(|e| unwritable(&self.path, &e))?;
        // A link is refused where a file has come about meanwhile; a rename would replace it.
        let placed = match self.force {
            true => fs::rename(&self.draft, &self.path),
            false => fs::hard_link(&self.draft, &self.path),
        };
        match placed {
            Ok(()) => Ok(self.bytes),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(is_there(&self.path)),
            // Not every file system has links.
            Err(_) if !self.force && fs::symlink_metadata(&self.path).is_err() => {
                fs::rename(&self.draft, &self.path).map_err(|e| unwritable(&self.path, &e))?;
                Ok(self.bytes)
            }
            Err(e) => Err(unwritable(&self.path, &e)),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.draft);
    }
}

fn is_there(path: &Path) -> Error {
    Error::new(Code::Invalid, format!("`{}` is there already", path.display()))
        .hint("name another file; --force replaces it")
}

fn unwritable(path: &Path, why: &io::Error) -> Error {
    Error::unavailable(format!("`{}` cannot be written: {why}", path.display()))
}
