//! Help that fits the terminal.
//!
//! clap wraps whatever is too long, also examples and lists, and then a description goes on under the command it
//! describes. Lines that are indented are made to fit here, before clap sees them.

use crate::screen::wrapped;
use unicode_width::UnicodeWidthStr;

/// The command, and all below it, with help for this width.
pub fn fitted(command: clap::Command, width: usize) -> clap::Command {
    let about = command.get_long_about().map(|about| text(&about.to_string(), width));
    let after = command.get_after_help().map(|after| text(&after.to_string(), width));
    let command = about.into_iter().fold(command, clap::Command::long_about);
    let command = after.into_iter().fold(command, clap::Command::after_help);
    command.mut_subcommands(|command| fitted(command, width))
}

fn text(text: &str, width: usize) -> String {
    text.lines().map(|text| line(text, width)).collect::<Vec<_>>().join("\n")
}

/// Wraps the lines that clap leaves too long: usages and errors.
pub fn rest(text: &str, width: usize) -> String {
    text.lines().map(|line| wrapped(line, width, 0, 4)).collect::<Vec<_>>().join("\n")
}

/// A line that is not indented is prose, which clap wraps well.
fn line(line: &str, width: usize) -> String {
    if !line.starts_with(' ') || line.width() <= width {
        return line.to_owned();
    }
    let body = line.trim_start();
    let indent = line.len() - body.len();
    let lead = " ".repeat(indent);
    let Some(gap) = body.find("  ") else { return example(body, indent, width) };
    let (left, right) = (body[..gap].trim_end(), body[gap..].trim_start());
    let column = indent + body.len() - right.len();
    // The description goes on in its own column if that is wide enough, and else stands below.
    match column + 24 <= width {
        true => wrapped(&format!("{:column$}{right}", format!("{lead}{left}")), width, 0, column),
        false => {
            let below = format!("{:1$}{right}", "", indent + 4);
            format!(
                "{}\n{}",
                self::line(&format!("{lead}{left}"), width),
                wrapped(&below, width, 0, indent + 4)
            )
        }
    }
}

/// A command that is too long goes on in the next line as a shell reads it. What is quoted stays together.
fn example(command: &str, indent: usize, width: usize) -> String {
    let mut lines = vec![" ".repeat(indent)];
    for word in words(command) {
        let last = lines.last_mut().map(|line| (line.width(), line));
        match last {
            // Room is left for the backslash.
            Some((used, line)) if line.trim().is_empty() || used + 1 + word.width() + 2 <= width => {
                line.push_str(if line.trim().is_empty() { "" } else { " " });
                line.push_str(word);
            }
            _ => lines.push(format!("{:1$}{word}", "", indent + 4)),
        }
    }
    lines.join(" \\\n")
}

/// Split at spaces that are not within quotes.
fn words(command: &str) -> impl Iterator<Item = &str> {
    let mut quote = None;
    command.split(move |c: char| {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), _) if c == open => quote = None,
            _ => {}
        }
        quote.is_none() && c == ' '
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn indented_lines_fit() {
        for (given, says) in [
            ("  fence init", "  fence init"),
            (
                "  fence claim                       take the best task that is ready",
                "  fence claim\n      take the best task that is\n      ready",
            ),
            ("  exit 0       the message is completed", "  exit 0\n      the message is completed"),
            ("  0    done, as far as anybody can know", "  0    done, as far as anybody can\n       know"),
            (
                "  fence add 'a b c' --board release --after one",
                "  fence add 'a b c' --board \\\n      release --after one",
            ),
            (
                "Prose is for clap to wrap, however long it is.",
                "Prose is for clap to wrap, however long it is.",
            ),
        ] {
            assert_eq!(line(given, 34), says, "{given}");
        }
    }

    /// Every command there is, and its help at this width.
    fn pages(command: &clap::Command, name: &str, pages: &mut Vec<(String, String)>) {
        for (short, mut command) in [("-h", command.clone()), ("--help", command.clone())] {
            let page = if short == "-h" { command.render_help() } else { command.render_long_help() };
            pages.push((format!("{name} {short}"), page.to_string()));
        }
        for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
            self::pages(command, &format!("{name} {}", command.get_name()), pages);
        }
    }

    fn all(mut command: clap::Command) -> Vec<(String, String)> {
        command.build();
        let mut all = Vec::new();
        pages(&command, "fence", &mut all);
        all
    }

    #[test]
    fn lists_and_examples_keep_their_columns() {
        let pages = all(crate::command_line_in(60));
        let page = |name: &str| pages.iter().find(|(page, _)| page == name).map(|(_, text)| text.as_str());
        for (name, says) in [
            (
                "fence --help",
                "  import       Bring tasks, agents and their conversation\n               along from elsewhere\n",
            ),
            (
                "fence --help",
                "\n  fence claim                       take the best task that\n                                    is",
            ),
            (
                "fence mail --help",
                "  fence mail work session/42 -- ./handle.sh\n      run a command for each message",
            ),
            (
                "fence mail --help",
                "  fence mail done message/7@1 --output \\\n      '{\"title\": \"found it\"}'",
            ),
        ] {
            let page = page(name).unwrap_or_default();
            assert!(page.contains(says), "{says}\n---\n{page}");
        }
    }

    #[test]
    fn help_fits_and_breaks_no_word() {
        let wide = all(crate::command_line().term_width(100_000));
        for width in [60, 80] {
            let narrow = all(crate::command_line_in(width));
            assert!(narrow.len() > 150 && narrow.len() == wide.len(), "{}", narrow.len());
            for ((name, narrow), (_, wide)) in narrow.iter().zip(&wide) {
                let known: BTreeSet<&str> = wide.split_whitespace().collect();
                for line in rest(narrow, width).lines() {
                    // What is typed in one piece stays in one piece.
                    let one_piece = words(line.trim_start()).filter(|word| *word != "\\").count() == 1;
                    assert!(line.trim_end().width() <= width || one_piece, "{name} at {width}:\n{line}");
                    let split = line.split_whitespace().find(|word| *word != "\\" && !known.contains(word));
                    assert_eq!(split, None, "{name} at {width}:\n{line}");
                }
            }
        }
    }
}
