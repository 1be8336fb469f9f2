//! The only way to standard output and standard error.
//!
//! In every line that is written, only this program's own colours and line ends act on a terminal; see `untrusted.rs`.

use super::{
    help, text,
    untrusted::{self, BREAK, STYLE},
};
use anstyle::{AnsiColor, Style};
use clap::builder::StyledStr;
use fencepost::{Error, Result};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use std::{
    io::{BufWriter, IsTerminal, Stdout, Write},
    os::fd::AsFd,
    sync::OnceLock,
};
use tokio::sync::watch;
use unicode_width::UnicodeWidthStr;

/// Marks the beginning of a colour of our own. Untrusted text cannot contain it, because each process draws a new one.
fn style_mark() -> &'static str {
    static MARK: OnceLock<String> = OnceLock::new();
    MARK.get_or_init(|| format!("{STYLE}{:016x}", fastrand::u64(..)))
}

/// The indent of each line of untrusted text.
pub const QUOTE: &str = "    ";

/// The width of the terminal, if standard output is one.
pub fn width() -> Option<usize> {
    terminal_width(&std::io::stdout())
}

/// The width of the terminal, if standard error is one.
pub fn error_width() -> Option<usize> {
    terminal_width(&std::io::stderr())
}

fn terminal_width(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    let size = || rustix::termios::tcgetwinsize(stream).map_or(0, |size| usize::from(size.ws_col));
    stream.is_terminal().then(size).map(|size| if size == 0 { 80 } else { size })
}

/// Does the user want colours? <https://no-color.org>
pub fn colours_are_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The text in this style, as [`print`] and [`print_error`] write it.
pub fn styled(style: Style, text: &str) -> String {
    let mark = |code: String| code.replace('\x1b', style_mark());
    format!("{}{text}{}", mark(style.render().to_string()), mark(style.render_reset().to_string()))
}

/// Writes to standard output. A reader that has closed the pipe (`| head`) is no error. A full disk is one: the caller does not
/// see the reply, which may be a token.
pub fn print(text: &str) -> Result<()> {
    write_out(&rendered(text))
}

/// Writes JSON to standard output.
pub fn print_json(json: &str) -> Result<()> {
    write_out(&untrusted::escaped_json(json))
}

fn write_out(text: &str) -> Result<()> {
    let mut out = std::io::stdout();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::unavailable(format!("the reply cannot be written to standard output: {e}"))
                .hint("the command took effect; fence claims and fence show print the state again"))
        }
        _ => Ok(()),
    }
}

/// Writes lines of JSON to standard output. Returns false if nobody reads any more.
pub fn print_json_lines(json: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(untrusted::escaped_json(json).as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Error::unavailable(format!("standard output cannot be written: {e}"))),
    }
}

/// Returns when nobody reads standard output any more. If that cannot happen (a file), it never returns.
///
/// A thread waits for it. `poll` without requested events wakes only for errors and hang-ups. tokio would also wake for each key
/// that is typed at a terminal, and it would report a socket as closed when its other end has only stopped writing.
pub async fn reader_gone() {
    static GONE: OnceLock<watch::Receiver<bool>> = OnceLock::new();
    let gone = GONE.get_or_init(|| {
        let (notify, gone) = watch::channel(false);
        let watching = std::thread::Builder::new().name("reader".into()).spawn(move || {
            let out = std::io::stdout();
            let mut stream = [PollFd::new(&out, PollFlags::empty())];
            while poll(&mut stream, None) == Err(Errno::INTR) {}
            notify.send_replace(stream[0].revents().intersects(PollFlags::ERR | PollFlags::HUP));
        });
        if let Err(e) = watching {
            tracing::warn!("a reader that hangs up will not be noticed: {e}");
        }
        gone
    });
    if gone.clone().wait_for(|gone| *gone).await.is_err() {
        std::future::pending().await
    }
}

/// Writes lines to standard error and ignores failures. It writes all at once, so that lines of other processes do not come in
/// between.
pub fn print_error(text: &str) {
    write_error(&(rendered(text) + "\n"));
}

/// Writes JSON to standard error.
pub fn print_error_json(json: &str) {
    write_error(&(untrusted::escaped_json(json) + "\n"));
}

/// Writes the output of a command to standard output as it is. A failure is ignored: the command goes on.
pub fn pass_on_output(bytes: &[u8]) {
    let mut out = std::io::stdout();
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

/// The same for standard error.
pub fn pass_on_error(bytes: &[u8]) {
    let mut err = std::io::stderr();
    let _ = err.write_all(bytes).and_then(|()| err.flush());
}

/// Writes kept output to standard output. Somebody else's command wrote it, so on a terminal it is made safe.
pub fn replay_output(bytes: &[u8]) {
    match width() {
        Some(_) => pass_on_output(shown_bytes(bytes).as_bytes()),
        None => pass_on_output(bytes),
    }
}

/// The same for standard error.
pub fn replay_error(bytes: &[u8]) {
    match error_width() {
        Some(_) => pass_on_error(shown_bytes(bytes).as_bytes()),
        None => pass_on_error(bytes),
    }
}

fn shown_bytes(bytes: &[u8]) -> String {
    rendered(&String::from_utf8_lossy(bytes))
}

/// `error: …`. The text may be untrusted.
pub fn label(word: &str, text: &str) -> String {
    let style = match word {
        "error" => Style::new().bold().fg_color(Some(AnsiColor::Red.into())),
        "warning" => Style::new().bold().fg_color(Some(AnsiColor::Yellow.into())),
        "hint" => Style::new().fg_color(Some(AnsiColor::Cyan.into())),
        _ => Style::new().bold(),
    };
    let word = format!("{word}:");
    let coloured = error_width().is_some() && colours_are_wanted();
    let text = untrusted::shown(text);
    let text = match error_width() {
        Some(width) => text::wrapped(&text, width, word.len() + 1, 2),
        None => text.into_owned(),
    };
    format!("{} {text}", if coloured { styled(style, &word) } else { word })
}

/// Standard output for a program that speaks a protocol with us. Its messages are JSON, in which hidden characters are escapes.
pub fn for_a_protocol() -> tokio::io::Stdout {
    tokio::io::stdout()
}

/// Standard output for the live views. `view/screen.rs` checks every character before it is written here.
pub fn for_views() -> BufWriter<Stdout> {
    // A whole frame is one write, so that no half of it is ever seen.
    BufWriter::with_capacity(256 * 1024, std::io::stdout())
}

/// Draws a line on standard error over the previous one. An empty text removes the line.
pub fn draw(text: &str) {
    write_error(&format!("\r\x1b[K{}", rendered(text)));
}

/// Writes a line of a log. The logger's own colours are kept.
pub fn log(line: &[u8], json: bool) {
    let line = String::from_utf8_lossy(line);
    let line = line.trim_end_matches('\n');
    match json {
        true => print_error_json(line),
        false => {
            print_error(&line.split('\x1b').map(untrusted::shown).collect::<Vec<_>>().join(style_mark()))
        }
    }
}

/// A failure is ignored: nobody reads a terminal that is closed.
fn write_error(text: &str) {
    let mut err = std::io::stderr();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

/// Writes an error of clap. The caller has escaped the words of the user, so all line ends and colours are clap's.
pub fn print_usage_error(text: &StyledStr) {
    print_error(as_clap(text, error_width()).trim_end());
}

/// Writes help or the version to standard output. A failure is ignored.
pub fn print_help(text: &StyledStr) {
    let _ = print(as_clap(text, width()).trim_end());
}

fn as_clap(text: &StyledStr, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_string() };
    let coloured = if colours_are_wanted() { text.ansi().to_string() } else { text.to_string() };
    help::rest(&coloured.replace('\x1b', style_mark()), width)
}

/// The text as it is written: our marks become colours and line ends, and hidden characters become escapes.
pub fn rendered(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(style) = rest.strip_prefix(style_mark()).filter(|rest| is_style(rest)) {
            out.push('\x1b');
            rest = style;
            continue;
        }
        rest = &rest[c.len_utf8()..];
        match c {
            '\n' | '\t' => out.push(c),
            BREAK => {
                out.push('\n');
                out.push_str(QUOTE);
            }
            c if untrusted::is_hidden(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// How many columns a text takes, without our own colours.
pub fn width_of(text: &str) -> usize {
    let mut parts = rendered(text).split('\x1b').map(str::to_owned).collect::<Vec<_>>().into_iter();
    let first = parts.next().map_or(0, |text| text.width());
    first + parts.map(|part| part.split_once('m').map_or(0, |(_, text)| text.width())).sum::<usize>()
}

/// `[31m…`
fn is_style(text: &str) -> bool {
    text.strip_prefix('[').is_some_and(|code| {
        code.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m')
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn only_our_own_colours_and_line_ends_act() {
        let red = Style::new().fg_color(Some(AnsiColor::Red.into()));
        let cases = [
            (styled(red, "failed"), "\x1b[31mfailed\x1b[0m"),
            (styled(red, "\x1b[2J"), "\x1b[31m\\u{1b}[2J\x1b[0m"),
            ("\u{fdd1}[31m\u{fdd1}0123456789abcdef[31m".into(), "\\u{fdd1}[31m\\u{fdd1}0123456789abcdef[31m"),
            (format!("{}]0;x", style_mark()), &format!("\\u{{fdd1}}{}]0;x", &style_mark()[3..])),
            (format!("a: {}\nb", untrusted::shown("x\nhint: y\u{fdd0}")), "a: x\n    hint: y\\u{fdd0}\nb"),
            ("\ta\r\u{202e}".into(), "\ta\\r\\u{202e}"),
        ];
        for (text, says) in cases {
            assert_eq!(rendered(&text), says);
        }
    }

    /// Output that bypasses this module would not be made safe.
    #[test]
    fn nothing_else_writes_to_standard_output_or_error() {
        let mut directories = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        let mut files = Vec::new();
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).expect("a directory") {
                let path = entry.expect("an entry").path();
                if path.is_dir() { directories.push(path) } else { files.push(path) }
            }
        }
        assert!(files.len() > 100);
        // A keeper reports to the process that started it through a pipe.
        for file in files
            .iter()
            .filter(|file| !file.ends_with("output/streams.rs") && !file.ends_with("commands/keep.rs"))
        {
            let code = std::fs::read_to_string(file).expect("its text");
            for way in
                ["io::stdout()", "io::stderr()", "print!(", "println!(", "stdio::stdout()", "stdio::stderr()"]
            {
                assert!(!code.contains(way), "{}: {way} bypasses output/streams.rs", file.display());
            }
        }
    }
}
