//! The difference of two texts, as `diff -u` shows it.

/// The lines of a unified diff, without the names of the files. `context`: how many unchanged lines surround a change.
pub fn lines(before: Option<&str>, after: Option<&str>, context: usize) -> Vec<String> {
    let (old, new) = (split(before), split(after));
    let same_start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let rest = (old.len() - same_start).min(new.len() - same_start);
    let same_end = (1..=rest).take_while(|back| old[old.len() - back] == new[new.len() - back]).count();
    let (old_middle, new_middle) =
        (&old[same_start..old.len() - same_end], &new[same_start..new.len() - same_end]);
    let mut steps: Vec<Step> = (0..same_start).map(|at| Step::Same(at, at)).collect();
    steps.extend(middle(old_middle, new_middle).into_iter().map(|step| step.moved(same_start)));
    steps.extend((0..same_end).map(|at| Step::Same(old.len() - same_end + at, new.len() - same_end + at)));
    hunks(&steps, &old, &new, context)
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Same(usize, usize),
    Removed(usize),
    Added(usize),
}

impl Step {
    fn moved(self, by: usize) -> Self {
        match self {
            Step::Same(old, new) => Step::Same(old + by, new + by),
            Step::Removed(old) => Step::Removed(old + by),
            Step::Added(new) => Step::Added(new + by),
        }
    }
}

fn split(text: Option<&str>) -> Vec<&str> {
    text.unwrap_or_default().split_inclusive('\n').collect()
}

/// The longest common subsequence. Past a million pairs of lines the whole middle is shown as replaced.
fn middle(old: &[&str], new: &[&str]) -> Vec<Step> {
    const MOST: usize = 1_000_000;
    if old.len().saturating_mul(new.len()) > MOST {
        return (0..old.len()).map(Step::Removed).chain((0..new.len()).map(Step::Added)).collect();
    }
    let width = new.len() + 1;
    let mut longest = vec![0_u32; (old.len() + 1) * width];
    for a in (0..old.len()).rev() {
        for b in (0..new.len()).rev() {
            longest[a * width + b] = match old[a] == new[b] {
                true => longest[(a + 1) * width + b + 1] + 1,
                false => longest[(a + 1) * width + b].max(longest[a * width + b + 1]),
            };
        }
    }
    let (mut a, mut b, mut steps) = (0, 0, Vec::new());
    while a < old.len() || b < new.len() {
        if a < old.len() && b < new.len() && old[a] == new[b] {
            steps.push(Step::Same(a, b));
            (a, b) = (a + 1, b + 1);
        } else if b == new.len()
            || a < old.len() && longest[(a + 1) * width + b] >= longest[a * width + b + 1]
        {
            steps.push(Step::Removed(a));
            a += 1;
        } else {
            steps.push(Step::Added(b));
            b += 1;
        }
    }
    steps
}

fn hunks(steps: &[Step], old: &[&str], new: &[&str], context: usize) -> Vec<String> {
    let changed: Vec<usize> = (0..steps.len()).filter(|at| !matches!(steps[*at], Step::Same(..))).collect();
    let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
    for at in changed {
        let (start, end) = (at.saturating_sub(context), (at + context + 1).min(steps.len()));
        match ranges.last_mut().filter(|range| range.end >= start) {
            Some(range) => range.end = end,
            None => ranges.push(start..end),
        }
    }
    let mut out = Vec::new();
    for range in ranges {
        let count = |of: fn(&Step) -> bool, steps: &[Step]| steps.iter().filter(|step| of(step)).count();
        let is_old = |step: &Step| !matches!(step, Step::Added(_));
        let is_new = |step: &Step| !matches!(step, Step::Removed(_));
        let place = |of: fn(&Step) -> bool| {
            let (before, length) = (count(of, &steps[..range.start]), count(of, &steps[range.clone()]));
            format!("{},{length}", if length == 0 { before } else { before + 1 })
        };
        out.push(format!("@@ -{} +{} @@", place(is_old), place(is_new)));
        for step in &steps[range] {
            let (sign, line) = match *step {
                Step::Same(at, _) => (' ', old[at]),
                Step::Removed(at) => ('-', old[at]),
                Step::Added(at) => ('+', new[at]),
            };
            out.push(format!("{sign}{}", line.strip_suffix('\n').unwrap_or(line)));
            if !line.ends_with('\n') {
                out.push("\\ No newline at end of file".into());
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_shown_with_their_surroundings() {
        for (before, after, shown) in [
            (Some("a\n"), Some("a\n"), ""),
            (None, Some("a\nb\n"), "@@ -0,0 +1,2 @@|+a|+b"),
            (Some("a\n"), None, "@@ -1,1 +0,0 @@|-a"),
            (Some("1\n2\n3\n4\n5\n"), Some("1\n2\nx\n4\n5\n"), "@@ -2,3 +2,3 @@| 2|-3|+x| 4"),
            (
                Some("1\n2\n3\n4\n5\n6\n"),
                Some("0\n1\n2\n3\n4\n5\n6"),
                "@@ -1,1 +1,2 @@|+0| 1|@@ -5,2 +6,2 @@| 5|-6|+6|\\ No newline at end of file",
            ),
        ] {
            assert_eq!(lines(before, after, 1).join("|"), shown, "{before:?} {after:?}");
        }
    }
}
