use super::import::Fleet;
use crate::{
    context::Context,
    output::{streams, untrusted::escaped_json},
    private_files::draft::Draft,
};
use clap::Args;
use fencepost::{Result, board};
use fencepost_import::{counted, jsonl};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Export the whole fleet as lines of JSON
///
/// The export has tasks in every state with their notes and progress, agents, channels with their posts and read cursors, inboxes,
/// mailboxes with their messages, and routes. `fence import jsonl` imports the file on SQLite or PostgreSQL. Tasks keep their
/// numbers; messages get new numbers and keep their order. Fences continue above those of this fleet, so that an old token never fits
/// a new claim.
///
/// The export does not have keys, runs, claims, locks, the effects of fence once, request ids, webhook deliveries and the log. A
/// claimed task is free after the import, and its `owner` records who had it. To export the log, use fence events.
///
/// Other commands can run meanwhile. Each item is consistent, but items are read one after the other, and items that are added
/// meanwhile may be missing. To move a fleet, stop its agents first. Through a server it needs an admin's key.
///
/// Examples:
///   fence export fleet.jsonl
///   fence export --board auth | jq -r 'select(.type == "task") | .title'
///   fence --db postgres://localhost/fence import jsonl fleet.jsonl
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Export {
    /// The file, which only you can read  [default: standard output, also for -]
    file: Option<PathBuf>,
    /// Only this board and its tasks; may be given several times
    #[arg(long)]
    board: Vec<String>,
    /// Replace an existing file
    #[arg(long, requires = "file")]
    force: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Written {
    file: String,
    bytes: u64,
    /// The number of items, by type.
    items: BTreeMap<String, usize>,
}

impl Export {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        // A typing error would otherwise export nothing.
        for name in &self.board {
            context.call(board::Show { board: name.clone(), limit: Some(1) }).await?;
        }
        match self.file.as_deref().filter(|file| *file != Path::new("-")) {
            None => {
                let fleet = Fleet::new(context);
                jsonl::export(&fleet, &self.board, &mut |text| streams::print_json_lines(text)).await?;
                Ok(ExitCode::SUCCESS)
            }
            Some(path) => {
                let mut file = Draft::create(path, self.force)?;
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
