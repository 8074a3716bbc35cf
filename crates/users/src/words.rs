//! Words of the form `key=value`, as coturn writes connections to MySQL and Redis.

/// Splits a connection into its words. Each is `key=value`; blanks stand between them and nowhere else.
///
/// # Errors
///
/// Says which word has no `=`, without repeating it: it may be a part of a password.
pub(crate) fn words(text: &str) -> Result<Vec<(&str, &str)>, String> {
    let words = text.split_ascii_whitespace().enumerate();
    words
        .map(|(index, word)| {
            word.split_once('=')
                .ok_or_else(|| format!("word {} has no `=`", index + 1))
        })
        .collect()
}

/// Says that a word is none of those that are known.
pub(crate) fn unknown(word: &str, known: &[&str]) -> String {
    format!(
        "`{}` is not known; the words are {}",
        word.escape_debug(),
        known.join(", ")
    )
}
