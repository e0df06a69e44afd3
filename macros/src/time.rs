//! Times in the arguments of the attribute.

use proc_macro2::TokenStream;
use quote::quote_spanned;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Lit, Result};

/// The value of an argument that is a time.
pub(crate) enum Time {
    Forever,
    /// An expression of the type `Duration`.
    Duration(TokenStream),
}

impl Time {
    /// Reads a text such as `"500ms"`, or takes any other expression as it is.
    pub(crate) fn of(expr: &Expr) -> Result<Self> {
        // A literal that came through a `macro_rules` macro.
        if let Expr::Group(group) = expr {
            return Self::of(&group.expr);
        }
        let Expr::Lit(ExprLit { lit, .. }) = expr else {
            return Ok(Self::Duration(quote_spanned!(expr.span() => #expr)));
        };
        let Lit::Str(text) = lit else {
            return Err(not_a_time(lit));
        };
        if text.value() == "forever" {
            return Ok(Self::Forever);
        }
        let millis = millis(&text.value()).ok_or_else(|| not_a_time(lit))?;
        let duration = quote_spanned!(text.span() => ::core::time::Duration::from_millis(#millis));
        Ok(Self::Duration(duration))
    }
}

fn millis(text: &str) -> Option<u64> {
    let at = text.find(|it: char| !it.is_ascii_digit())?;
    let (number, unit) = text.split_at(at);
    let unit = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

fn not_a_time(lit: &Lit) -> Error {
    Error::new(
        lit.span(),
        "not a time; write a number and its unit, such as \"500ms\", \"30s\", \"2m\" or \"1h\"",
    )
}
