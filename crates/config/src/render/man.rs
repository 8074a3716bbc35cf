//! `turnbuckle options --man`: a manual page in man(7) format.

use super::about::{description, synopsis, usable};
use crate::entry::Group;

/// Returns the manual page of `turnbuckle serve`.
#[must_use]
pub fn man() -> String {
    let mut text = format!(
        ".TH TURNBUCKLE 1 \"\" \"turnbuckle {}\" \"User Commands\"\n\
         .SH NAME\nturnbuckle \\- TURN/STUN relay\n\
         .SH SYNOPSIS\n.B turnbuckle serve\n[options]\n.br\n.B turnbuckle check\n[FILE] [options] [\\-\\-as NAME] [\\-\\-json]\n\
         .SH DESCRIPTION\nEvery option is also a key of the file that \\-c names, without the dashes.\n\
         Flags take no value, or =true or =false.\nValues of the command line override those of the file.\n",
        env!("CARGO_PKG_VERSION")
    );
    for group in Group::ALL {
        let mut entries = usable(group).peekable();
        if entries.peek().is_none() {
            continue;
        }
        text.push_str(&format!(".SH {}\n", group.title().to_uppercase()));
        for entry in entries {
            text.push_str(&format!(
                ".TP\n.B {}\n{}\n",
                escape(synopsis(entry).trim_start()),
                escape(&description(entry))
            ));
        }
    }
    text.push_str(".SH EXIT STATUS\n0 after an orderly end, 1 if the configuration is refused or the relay cannot run, 2 for a wrong subcommand.\n");
    text
}

/// Keeps roff from reading hyphens, backslashes and leading dots or quotes as its own.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) {
        format!("\\&{text}")
    } else {
        text
    }
}
