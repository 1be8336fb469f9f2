//! Whose run it is when nobody says: one for this terminal's session, so that every command typed into it acts
//! for the same run, and two terminals never do.

/// `shell-4711-882134`: the session leader's process id and when it started, because ids are used again.
pub fn name() -> String {
    let leader =
        rustix::process::getsid(None).or_else(|_| rustix::process::getppid().ok_or(rustix::io::Errno::SRCH));
    let leader = leader.map_or(0, |pid| pid.as_raw_nonzero().get());
    match started(leader) {
        Some(at) => format!("shell-{leader}-{at}"),
        None => format!("shell-{leader}"),
    }
}

/// The 22nd field of `/proc/PID/stat`, counted after the name, which may hold spaces.
fn started(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}
