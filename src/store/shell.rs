//! Names in commands that are shown to be copied into a shell.

use std::borrow::Cow;
use std::fmt::Display;

/// `text` as one word of a shell's command line: in quotes only where it must be.
pub(crate) fn shell_word(text: impl Display) -> String {
    let text = text.to_string();
    shlex::try_quote(&text).map_or_else(|_| text.clone(), Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::shell_word;

    #[test]
    fn a_name_is_one_word_and_plain_ones_have_no_quotes() {
        for plain in [
            "s3://prod-ckpt/3f2a_1/chk-42",
            "file:/data/a.b/chk-1",
            "gs://b/x+y",
            "az://c/a",
        ] {
            assert_eq!(shell_word(plain), plain);
        }
        for odd in [
            "s3://b/a b",
            "file:/it's",
            "s3://b/$HOME/`x`",
            "s3://b/a;b&c",
            "s3://b/x*?",
            "",
            "~x",
            "a\\b",
        ] {
            assert_eq!(shlex::split(&shell_word(odd)).unwrap(), [odd]);
            assert_ne!(shell_word(odd), odd);
        }
        // No shell can have it.
        assert_eq!(shell_word("a\0b"), "a\0b");
    }
}
