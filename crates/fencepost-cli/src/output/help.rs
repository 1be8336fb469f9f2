//! Help that fits the terminal.
//!
//! clap wraps every long line, also of examples and lists, so that a description would continue in the column of its command.
//! This module wraps indented lines before clap sees them.

use super::text::wrapped;
use unicode_width::UnicodeWidthStr;

/// The command and its subcommands, with help for this width.
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

/// Wraps a line that is indented. Other lines are prose, which clap wraps well.
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
    // The description continues in its own column if that is wide enough, and else below.
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

/// Wraps an example with a backslash, as a shell reads it. Quoted words stay together.
fn example(command: &str, indent: usize, width: usize) -> String {
    let mut lines = vec![" ".repeat(indent)];
    for word in words(command) {
        let last = lines.last_mut().map(|line| (line.width(), line));
        match last {
            // Leaves room for the backslash.
            Some((used, line)) if line.trim().is_empty() || used + 1 + word.width() + 2 <= width => {
                line.push_str(if line.trim().is_empty() { "" } else { " " });
                line.push_str(word);
            }
            _ => lines.push(format!("{:1$}{word}", "", indent + 4)),
        }
    }
    lines.join(" \\\n")
}

/// Splits at spaces that are not within quotes.
pub fn words(command: &str) -> impl Iterator<Item = &str> {
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
}
