//! The arguments of the attribute.

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Expr, Ident, LitStr, Result, Token};

use crate::time::Time;

/// The length of the longest name, in bytes.
const MAX_NAME_BYTES: usize = 512;

const KNOWN: &str =
    "`keeper = …`, `wait = \"5s\"`, `ttl = \"30s\"`, `shared`, `permits = 5` or `guard = …`";

pub(crate) struct Arguments {
    /// The format of the name, and the values after it.
    pub(crate) name: LitStr,
    pub(crate) values: Vec<Expr>,
    pub(crate) keeper: Expr,
    pub(crate) wait: Option<Time>,
    pub(crate) ttl: Option<Time>,
    pub(crate) mode: Mode,
    pub(crate) guard: Option<Ident>,
}

pub(crate) enum Mode {
    Exclusive,
    Shared,
    Permits(Expr),
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if !input.peek(LitStr) {
            let text = "begin with the name of the lock, such as #[locked(\"seat:{id}\", keeper = self.keeper)]";
            return Err(input.error(text));
        }
        let name = input.parse()?;
        check_name(&name)?;
        let (mut values, mut keeper, mut wait, mut ttl) = (Vec::new(), None, None, None);
        let (mut shared, mut permits, mut guard) = (None, None, None);
        while !input.is_empty() {
            input.parse::<Token![,]>()?;
            if input.is_empty() {
                break;
            }
            let is_setting =
                input.peek(Ident::peek_any) && input.peek2(Token![=]) && !input.peek2(Token![==]);
            if is_setting {
                let key = input.call(Ident::parse_any)?;
                input.parse::<Token![=]>()?;
                match key.to_string().as_str() {
                    "keeper" => set(&mut keeper, &key, input.parse()?)?,
                    "wait" => set(&mut wait, &key, Time::of(&input.parse()?)?)?,
                    "ttl" => set(&mut ttl, &key, ttl_of(&input.parse()?)?)?,
                    "permits" => set(&mut permits, &key, permits_of(input.parse()?)?)?,
                    "guard" => set(&mut guard, &key, input.parse()?)?,
                    other => {
                        let text = format!("unknown argument `{other}`; there are {KNOWN}");
                        return Err(Error::new(key.span(), text));
                    }
                }
                continue;
            }
            let value: Expr = input.parse()?;
            match &value {
                Expr::Path(path) if path.path.is_ident("shared") => {
                    set(&mut shared, &Ident::new("shared", Span::call_site()), value)?;
                }
                _ => values.push(value),
            }
        }
        let Some(keeper) = keeper else {
            let text = "say which keeper grants the lock: `keeper = self.keeper`";
            return Err(Error::new(name.span(), text));
        };
        let mode = match (shared, permits) {
            (Some(_), Some(permits)) => {
                let text = "`shared` and `permits` exclude each other: a permit counts its holders";
                return Err(Error::new_spanned(permits, text));
            }
            (Some(_), None) => Mode::Shared,
            (None, Some(permits)) => Mode::Permits(permits),
            (None, None) => Mode::Exclusive,
        };
        Ok(Self {
            name,
            values,
            keeper,
            wait,
            ttl,
            mode,
            guard,
        })
    }
}

fn set<T>(place: &mut Option<T>, key: &Ident, value: T) -> Result<()> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => {
            let text = format!("`{key}` is given twice; say it once");
            Err(Error::new(key.span(), text))
        }
    }
}

fn check_name(name: &LitStr) -> Result<()> {
    let text = name.value();
    if text.is_empty() {
        return Err(Error::new(
            name.span(),
            "a lock needs a name of 1 to 512 bytes",
        ));
    }
    if !text.contains(['{', '}']) && text.len() > MAX_NAME_BYTES {
        let text = format!(
            "the name has {} bytes, at most {MAX_NAME_BYTES} are allowed; shorten it",
            text.len()
        );
        return Err(Error::new(name.span(), text));
    }
    Ok(())
}

fn ttl_of(value: &Expr) -> Result<Time> {
    match Time::of(value)? {
        Time::Forever => {
            let text = "a ttl cannot be forever: the store has to free the lock of a program that was killed";
            Err(Error::new_spanned(value, text))
        }
        ttl @ Time::Duration(_) => Ok(ttl),
    }
}

fn permits_of(value: Expr) -> Result<Expr> {
    if let Expr::Lit(lit) = &value
        && let syn::Lit::Int(number) = &lit.lit
        && !matches!(number.base10_parse(), Ok(1..=65_535_u32))
    {
        let text = "a semaphore has 1 to 65535 permits";
        return Err(Error::new(number.span(), text));
    }
    Ok(value)
}
