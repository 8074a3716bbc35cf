//! `turnadmin`: coturn's administration of its user database, by coturn's options, with coturn's output, on SQLite.
//!
//! Options are read in their order and the last command counts, as there. Differences, each because the other way lost data or hid a mistake:
//! a realm option set to 0 is removed, values are bound and not pasted into statements, names are read as characters and not as bytes,
//! and a command that needs a database and finds none says so.

mod arguments;
mod failure;
mod run;
mod usage;

use std::ffi::OsString;
use std::io::Write;

use self::arguments::Wish;
use self::failure::Failure;

/// Exit code of coturn's programs for whatever went wrong.
const FAILED: u8 = 255;

/// Carries out what `arguments` (without the program's name) ask for. Results go to `out`, complaints to `complaints`; returns the exit code.
pub fn turnadmin(
    arguments: impl IntoIterator<Item = OsString>,
    out: &mut impl Write,
    complaints: &mut impl Write,
) -> u8 {
    let done = arguments::parse(arguments).and_then(|wish| match wish {
        Wish::Help => Ok(usage::TEXT.to_owned()),
        Wish::Run(arguments) => run::run(&arguments),
    });
    // A reader that went away is no failure of the command, which is done by now.
    match done {
        Ok(text) => {
            let _ = out.write_all(text.as_bytes());
            let _ = out.flush();
            0
        }
        Err(Failure::Usage(message)) => {
            let _ = writeln!(complaints, "turnadmin: {message}\n\n{}", usage::TEXT);
            FAILED
        }
        Err(Failure::Refused(message)) => {
            let _ = writeln!(complaints, "{message}");
            FAILED
        }
    }
}

#[cfg(test)]
mod tests;
