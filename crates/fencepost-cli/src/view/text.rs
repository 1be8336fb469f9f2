//! Text of `output` in a frame, and short words for numbers that change.

use crate::output::{Terminal, streams, untrusted};
use fencepost::Millis;
use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::{Color, Modifier, Style},
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

/// A text that `output` laid out and coloured, in lines for a frame. Untrusted characters in it are escapes after this.
pub fn lines(text: &str) -> Vec<Line<'static>> {
    streams::rendered(text).split('\n').map(line).collect()
}

/// One line; the only ESC in it begin our own colours.
fn line(text: &str) -> Line<'static> {
    let mut parts = text.split('\x1b');
    let plain = parts.next().map(|text| Span::raw(text.replace('\t', " ")));
    let mut style = Style::new();
    let coloured = parts.filter_map(|part| {
        let (codes, text) = part.strip_prefix('[')?.split_once('m')?;
        style = codes.split(';').fold(style, after_code);
        Some(Span::styled(text.replace('\t', " "), style))
    });
    plain.into_iter().chain(coloured).filter(|span| !span.content.is_empty()).collect::<Vec<_>>().into()
}

/// The style after one code of our own colours: bold, dimmed and the eight colours.
fn after_code(style: Style, code: &str) -> Style {
    match code.parse() {
        Ok(1) => style.add_modifier(Modifier::BOLD),
        Ok(2) => style.add_modifier(Modifier::DIM),
        Ok(code @ 30..=37) => style.fg(Color::Indexed(code - 30)),
        _ => Style::new(),
    }
}

/// A line of a program's output as it would look on a terminal, without its colours: what comes after the last carriage return.
/// Other sequences stay, and are shown as escapes.
pub fn output(text: &str) -> String {
    let text = text.trim_end_matches(['\r', '\n']).rsplit('\r').next().unwrap_or_default();
    let mut parts = text.split("\x1b[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let after = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        match after.strip_prefix('m') {
            Some(rest) => plain.push_str(rest),
            None => plain = plain + "\x1b[" + part,
        }
    }
    crate::output::text::line(&plain)
}

/// Draws the lines from the top of the area. Lines below its end are not drawn.
pub fn draw(lines: &[Line<'_>], area: Rect, buffer: &mut Buffer) {
    let area = area.intersection(buffer.area);
    for (line, y) in lines.iter().zip(area.top()..area.bottom()) {
        buffer.set_line(area.x, y, line, area.width);
    }
}

/// Replaces every character that acts on a terminal or is invisible. The texts of a view have none; this makes sure of it.
pub fn make_safe(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        if cell.symbol().chars().any(untrusted::is_hidden) {
            cell.set_symbol("?");
        }
    }
}

/// `── 3 running ─────────`
pub fn heading(text: &str, terminal: &Terminal) -> String {
    let text = terminal.fit(&format!("── {text} "), "");
    let rest = terminal.width().unwrap_or(0).saturating_sub(text.width());
    terminal.dim(&(text + &"─".repeat(rest)))
}

/// A span that changes every second as long as it is below an hour: `9s`, `2m03s`, `1h05m`, `3d04h`.
pub fn ticking(span: Millis) -> String {
    let s = span.0.max(0) / 1000;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86_400, s / 3600 % 24),
    }
}

/// `$0.41`; less than a cent with as many digits as say something.
pub fn dollars(usd: f64) -> String {
    if usd > 0.0 && usd < 0.01 { format!("${usd:.4}") } else { format!("${usd:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::terminal::state;
    use fencepost::Time;

    #[test]
    fn colours_become_styles_and_untrusted_characters_escapes() {
        let terminal = Terminal::fixed(Some(80)).coloured();
        let text =
            format!("a {} b\t{}", terminal.paint(state("failed"), "x\x1b[31m\u{202e}"), terminal.bold("c"));
        let lines = lines(&(text + "\nnext"));
        let spans: Vec<_> = lines[0].spans.iter().map(|span| (span.content.as_ref(), span.style)).collect();
        let red = Style::new().fg(Color::Indexed(1));
        let bold = Style::new().add_modifier(Modifier::BOLD);
        assert_eq!(
            spans,
            [("a ", Style::new()), ("x\\u{1b}[31m\\u{202e}", red), (" b ", Style::new()), ("c", bold),]
        );
        assert_eq!(lines[1], Line::raw("next"));
        assert_eq!(Terminal::of_view(7, Time(0)).width(), Some(7));
    }

    #[test]
    fn output_of_programs_is_without_its_colours() {
        for (text, says) in [
            ("\x1b[1;32m   Compiling\x1b[0m fence\r\n", "   Compiling fence"),
            ("10 %\r20 %\r", "20 %"),
            ("\x1b[2Jx\x1b]0;y\u{202e}", "\\u{1b}[2Jx\\u{1b}]0;y\\u{202e}"),
            ("", ""),
        ] {
            assert_eq!(output(text), says);
        }
    }

    #[test]
    fn no_hidden_character_stays_in_a_buffer() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 4, 1));
        for (cell, symbol) in buffer.content.iter_mut().zip(["\u{202e}", "\x1b[2J", "a\u{200d}b", "é"]) {
            cell.set_symbol(symbol);
        }
        make_safe(&mut buffer);
        assert_eq!(buffer, Buffer::with_lines(["???é"]));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0, 9_999, 60_000, 3_599_999].map(|ms| ticking(Millis(ms))),
            ["0s", "9s", "1m00s", "59m59s"]
        );
        assert_eq!([3_900_000, 273_600_000, -5].map(|ms| ticking(Millis(ms))), ["1h05m", "3d04h", "0s"]);
        assert_eq!([0.0, 0.004, 1.234].map(dollars), ["$0.00", "$0.0040", "$1.23"]);
    }
}
