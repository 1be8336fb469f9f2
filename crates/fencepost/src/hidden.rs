//! Hidden characters in untrusted text: a title or a reason may contain sequences that move the cursor, characters that reverse the
//! reading direction, and characters that nobody sees.

/// Does the character act on a terminal, or is it invisible? These are control characters, line separators, and all that Unicode
/// calls default-ignorable: directions, joiners, fillers and tags. U+FE00 to U+FE0F are allowed: they choose between two ways to
/// draw the character before them.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || (u32::from(c) & 0xfffe) == 0xfffe
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fdd0}'..='\u{fdef}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// The text with hidden characters as escapes (`\u{1b}`). Line ends and tabs stay: JSON escapes them.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            c if is_hidden(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}
