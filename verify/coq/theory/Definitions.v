(** Definitions of the layers in the theorems.

    Source of the equations: Cordonnier, Loukas, Jaggi, "On the Relationship between
    Self-Attention and Convolutional Layers", ICLR 2020.  All numbers are real; floating
    point is in other files. *)

From Coq Require Import Reals ZArith List.
Import ListNotations.
Open Scope R_scope.

(** * Sums, vectors, matrices *)

(** [sum l f] is Σ_{x ∈ l} f(x); [sum_below n f] is Σ_{i < n} f(i). *)
Definition sum {A : Type} (l : list A) (f : A -> R) : R := fold_right (fun x s => f x + s) 0 l.
Definition sum_below (n : nat) (f : nat -> R) : R := sum (seq 0 n) f.

(** A vector is its entries, a matrix its entries by row and column; the theorems state the
    dimensions that are summed over, and entries beyond them are never read. *)
Notation vector := (nat -> R).
Notation matrix := (nat -> nat -> R).

Definition dot (n : nat) (x y : vector) : R := sum_below n (fun i => x i * y i).
(** The row vector x A, where A has n rows; the column vector A y, where A has n columns. *)
Definition row_times (n : nat) (x : vector) (A : matrix) : vector := fun j => sum_below n (fun i => x i * A i j).
Definition times_column (n : nat) (A : matrix) (y : vector) : vector := fun i => sum_below n (fun j => A i j * y j).

(** * Positions *)

(** A position, or a shift, is its integer coordinates: the dimension d is the list's length. *)
Notation position := (list Z).

Fixpoint add (p q : position) : position :=
  match p, q with a :: p', b :: q' => (a + b)%Z :: add p' q' | _, _ => [] end.
Fixpoint sub (p q : position) : position :=
  match p, q with a :: p', b :: q' => (a - b)%Z :: sub p' q' | _, _ => [] end.
(** ‖p‖², p·q *)
Fixpoint norm2 (p : position) : Z := match p with [] => 0%Z | a :: p' => (a * a + norm2 p')%Z end.
Fixpoint dotZ (p q : position) : Z :=
  match p, q with a :: p', b :: q' => (a * b + dotZ p' q')%Z | _, _ => 0%Z end.
(** The i-th coordinate, as a real. *)
Definition coordinate (p : position) (i : nat) : R := IZR (nth i p 0%Z).

(** A finite grid of dimension d, or the support of a kernel: distinct positions of d coordinates. *)
Definition positions (d : nat) (G : list position) : Prop := NoDup G /\ Forall (fun p => length p = d) G.

(** An image: the feature vector X_k of every token k. *)
Notation image := (position -> vector).

(** * Self-attention *)

(** One head's parameters (Eq. 3, Eq. 6).  W_qry, W_key: D_in × D_k.  Ŵ_key: D_k × D_p.
    u, v: D_k.  W_val: D_in × D_h.  W_out: D_h × D_out, the head's rows of the paper's W_out. *)
Record head := {
  W_qry : matrix;
  W_key : matrix;
  W_key_pos : matrix;
  u : vector;
  v : vector;
  W_val : matrix;
  W_out : matrix
}.

(** A multi-head self-attention layer; its heads are numbered by any type H.
    [r δ] is the relative positional encoding r_δ ∈ R^{D_p} of δ = k − q. *)
Record layer (H : Type) := {
  D_in : nat;
  D_k : nat;
  D_p : nat;
  D_h : nat;
  D_out : nat;
  heads : list H;
  parameters : H -> head;
  r : position -> vector;
  b_out : vector
}.
Arguments D_in {H}. Arguments D_k {H}. Arguments D_p {H}. Arguments D_h {H}. Arguments D_out {H}.
Arguments heads {H}. Arguments parameters {H}. Arguments r {H}. Arguments b_out {H}.

(** Eq. 6, all four terms, with δ = k − q:
    A_{q,k} = X_q W_qry W_keyᵀ X_kᵀ + X_q W_qry Ŵ_key r_δ + uᵀ W_keyᵀ X_kᵀ + vᵀ Ŵ_key r_δ. *)
Definition score {H} (L : layer H) (h : H) (X : image) (q k : position) : R :=
  let w := parameters L h in
  let query := row_times (D_in L) (X q) (W_qry w) in
  let key := row_times (D_in L) (X k) (W_key w) in
  let key_pos := times_column (D_p L) (W_key_pos w) (r L (sub k q)) in
  dot (D_k L) query key + dot (D_k L) query key_pos + dot (D_k L) (u w) key + dot (D_k L) (v w) key_pos.

(** softmax over the keys of the grid G. *)
Definition softmax {A : Type} (G : list A) (s : A -> R) (k : A) : R := exp (s k) / sum G (fun k' => exp (s k')).

(** P^h_{q,k}: the attention of query q to key k in head h. *)
Definition attention {H} (L : layer H) (G : list position) (h : H) (X : image) (q k : position) : R :=
  softmax G (fun k' => score L h X q k') k.

(** Eq. 3, row q, channel j: MHSA(X) = b_out + Σ_h P^h X W_val^h W_out^h. *)
Definition attend {H} (L : layer H) (G : list position) (X : image) (q : position) (j : nat) : R :=
  b_out L j + sum (heads L) (fun h =>
    let w := parameters L h in
    let attended := fun i => sum G (fun k => attention L G h X q k * X k i) in
    row_times (D_h L) (row_times (D_in L) attended (W_val w)) (W_out w) j).

(** * Convolution *)

(** Eq. 8, row q, channel j, for a kernel of support Δ with the D_in × D_out matrix W_τ at
    every shift τ ∈ Δ (cross-correlation, as torch computes it):
    Conv(X)_q = b + Σ_{τ ∈ Δ} X_{q+τ} W_τ.  X is the padded input: Geometry.v says which. *)
Definition conv (d_in : nat) (Δ : list position) (W : position -> matrix) (b : vector)
    (X : image) (q : position) (j : nat) : R :=
  b j + sum Δ (fun τ => row_times d_in (X (add q τ)) (W τ) j).

(** * The construction (Lemma 2, Theorem 1) *)

(** The quadratic encoding r_δ = (‖δ‖², δ), and v_h = −α (1, −2τ_h). *)
Definition r_quadratic (δ : position) : vector :=
  fun i => match i with O => IZR (norm2 δ) | S i' => coordinate δ i' end.
Definition v_quadratic (α : R) (τ : position) : vector :=
  fun i => match i with O => - α | S i' => 2 * α * coordinate τ i' end.

Definition zero_matrix : matrix := fun _ _ => 0.
Definition identity : matrix := fun i j => if Nat.eqb i j then 1 else 0.

(** A layer whose score is v_h·r_δ alone, with r_δ ∈ R^{d_p}, and whose head h carries the matrix W(h):
    W_qry = W_key = 0, u = 0, Ŵ_key = I, W_val = W(h), W_out = I, so that D_h = D_out. *)
Definition positional {H} (d_p d_in d_out : nat) (r_ : position -> vector) (hs : list H) (v_ : H -> vector)
    (W : H -> matrix) (b : vector) : layer H := {|
  D_in := d_in; D_k := d_p; D_p := d_p; D_h := d_out; D_out := d_out;
  heads := hs;
  parameters := fun h => {|
    W_qry := zero_matrix; W_key := zero_matrix; W_key_pos := identity;
    u := fun _ => 0; v := v_ h;
    W_val := W h; W_out := identity |};
  r := r_;
  b_out := b |}.

(** The layer that Theorem 1 builds in dimension d, head h looking at the shift f(h): D_p = d + 1. *)
Definition construction {H} (d d_in d_out : nat) (α : R) (hs : list H) (f : H -> position) (W : H -> matrix)
    (b : vector) : layer H :=
  positional (S d) d_in d_out r_quadratic hs (fun h => v_quadratic α (f h)) W b.

(** ϑ and the leakage bounds are in Leakage.v, padding and the other fields of torch in Geometry.v. *)
