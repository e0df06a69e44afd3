//! Jute: numbers with the highest byte first, and buffers after their lengths.

/// Adds a buffer.
pub(crate) fn put_buffer(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend(i32::try_from(bytes.len()).unwrap_or(i32::MAX).to_be_bytes());
    to.extend(bytes);
}

/// Reads what a server has sent. Each method returns `None` if that ends too early.
pub(crate) struct Decoder<'a>(pub(crate) &'a [u8]);

impl<'a> Decoder<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn int(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(crate) fn long(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        self.array().map(|[byte]| byte != 0)
    }

    /// Reads a buffer; one that is null is empty.
    pub(crate) fn buffer(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.int()?.max(0)).ok()?;
        let (buffer, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(buffer)
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let text = str::from_utf8(self.buffer()?);
        Some(text.ok()?.to_owned())
    }
}
